"""A command that is started again when it dies: the supervisor behind ``--supervise``.

Rules:

* The command runs in a child process. The supervisor hands SIGINT and SIGTERM on to it, and ends with it when it ends
  by such a signal or without an error.
* A child that was killed, or has ended with an error, is started again after a pause, which is longer after each child
  that did not get ready. If the first child does not get ready and was not killed, the supervisor ends, too: what it
  complained of is for the operator to mend.
* A child ends when its supervisor has ended, however that ended: so whatever starts the supervisor again finds the
  ports and files free.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

__all__ = ["Ended", "Supervised", "next_step", "supervise"]

_PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 60.0
_STEP_S: Final = 0.1
_READY: Final = b"r"
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child has ended: its exit code, the negative number of a signal; and what was before."""

    exit_code: int
    was_ready: bool
    is_stopping: bool
    """Whether the supervisor was told to end."""
    any_ready: bool
    """Whether this child, or one before it, got ready."""
    pause_s: float
    """How long was waited before it was started; 0 for the first."""


def next_step(ended: Ended) -> float | None:
    """For how long to wait before another child is started; None: the supervisor ends, too."""
    if ended.is_stopping or ended.exit_code == 0:
        return None
    if not ended.any_ready and ended.exit_code > 0:
        return None
    if ended.was_ready or not ended.pause_s:
        return _PAUSE_S
    return min(2 * ended.pause_s, _PAUSE_MAX_S)


class Supervised:
    """The child's side."""

    def __init__(self, ready: int) -> None:
        self._ready = ready

    def is_ready(self) -> None:
        """Say that the command does its work now."""
        os.write(self._ready, _READY)


def supervise(say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)) -> Supervised:
    """Go on in a child process, which is started again as the module's rules say. Returns only in children.

    Call it before threads are started. The supervisor itself leaves by SystemExit, with the code of the last child.
    """
    any_ready, pause_s = False, 0.0
    signals = _Signals()
    while True:
        with signals.held():
            if signals.is_stopping:
                raise SystemExit(0)
            ready, ready_of_child = os.pipe()
            alive_of_child, alive = os.pipe()
            child = os.fork()
            if child == 0:
                signals.restore()
                os.close(ready)
                os.close(alive)
                threading.Thread(target=_end_with_supervisor, args=(alive_of_child,), daemon=True).start()
                return Supervised(ready_of_child)
            signals.child = child
        os.close(ready_of_child)
        os.close(alive_of_child)
        exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signals.child = None
        os.close(alive)
        os.set_blocking(ready, False)
        was_ready = _read(ready) == _READY
        any_ready = any_ready or was_ready
        step_s = next_step(Ended(exit_code, was_ready, signals.is_stopping, any_ready, pause_s))
        if step_s is None:
            raise SystemExit(exit_code if exit_code >= 0 else 128 - exit_code)
        pause_s = step_s
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        say(f"The process {child} {how} and is started again in {pause_s:g} s.")
        signals.pause(pause_s)


class _Signals:
    """SIGINT and SIGTERM of the supervisor: noted, and handed on to the child."""

    def __init__(self) -> None:
        self.child: int | None = None
        self.is_stopping = False
        self._before = {number: signal.signal(number, self._take) for number in _STOPPING}

    def _take(self, number: int, _: object) -> None:
        self.is_stopping = True
        if self.child is not None:
            with suppress(ProcessLookupError):  # it has ended, and its end has just been learned
                os.kill(self.child, number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep signals back, so that none falls between a fork and the note of it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def restore(self) -> None:
        """Treat signals as before, in the child."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pause(self, pause_s: float) -> None:
        """Wait, or not if the supervisor is to end."""
        deadline = time.monotonic() + pause_s
        while not self.is_stopping and time.monotonic() < deadline:
            time.sleep(_STEP_S)


def _read(ready: int) -> bytes:
    """What a child that has ended wrote. Processes that it has left behind may still hold its end of the pipe."""
    try:
        return os.read(ready, 1)
    except BlockingIOError:
        return b""
    finally:
        os.close(ready)


def _end_with_supervisor(alive: int) -> None:
    os.read(alive, 1)  # nothing is ever written: it returns when the supervisor's end is closed
    os.kill(os.getpid(), signal.SIGTERM)
