"""Restart a command when it dies: the supervisor behind ``--supervise``.

Rules:

* The command runs in a child process. The supervisor forwards SIGINT and SIGTERM to the child, and exits when the child
  ends by such a signal or without an error.
* A child that was killed or failed is restarted after a pause, which grows with each child that did not become ready.
  If the first child does not become ready and was not killed, the supervisor exits too: the operator must fix what the
  child reported.
* A child ends when its supervisor ends, however that happens. Whatever restarts the supervisor then finds the ports and
  files free.
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
    """How a child ended: its exit code (negative: the number of a signal), and the state that decides about a
    restart."""

    exit_code: int
    was_ready: bool
    is_stopping: bool
    """True if the supervisor received a signal to end."""
    any_ready: bool
    """True if this child, or an earlier one, became ready."""
    pause_s: float
    """The pause before this child was started, in seconds. 0 for the first child."""


def next_step(ended: Ended) -> float | None:
    """Return the seconds to wait before starting another child, or None if the supervisor is to end too."""
    if ended.is_stopping or ended.exit_code == 0:
        return None
    if not ended.any_ready and ended.exit_code > 0:
        return None
    if ended.was_ready or not ended.pause_s:
        return _PAUSE_S
    return min(2 * ended.pause_s, _PAUSE_MAX_S)


class Supervised:
    """A supervised child's connection to its supervisor."""

    def __init__(self, ready: int) -> None:
        self._ready = ready

    def report_ready(self) -> None:
        """Report that the command is ready."""
        os.write(self._ready, _READY)


def supervise(say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)) -> Supervised:
    """Fork a child process, in which this function returns. The supervisor starts another child if it is killed or
    fails.

    Call it before threads are started. In the supervisor, it never returns: it raises SystemExit with the exit code of
    the last child.
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
        say(f"The process {child} {how} and is restarted in {pause_s:g} s.")
        signals.pause(pause_s)


class _Signals:
    """The handler of the supervisor's SIGINT and SIGTERM. It records them, and forwards them to the child."""

    def __init__(self) -> None:
        self.child: int | None = None
        self.is_stopping = False
        self._before = {number: signal.signal(number, self._take) for number in _STOPPING}

    def _take(self, number: int, _: object) -> None:
        self.is_stopping = True
        if self.child is not None:
            with suppress(ProcessLookupError):  # the child has already ended
                os.kill(self.child, number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Block signals, so that none arrives between a fork and the recording of the child."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def restore(self) -> None:
        """Restore the previous signal handlers, in the child."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pause(self, pause_s: float) -> None:
        """Wait ``pause_s`` seconds, or until the supervisor receives a signal to end."""
        deadline = time.monotonic() + pause_s
        while not self.is_stopping and time.monotonic() < deadline:
            time.sleep(_STEP_S)


def _read(ready: int) -> bytes:
    """Return the byte that an ended child wrote to ``ready``, or nothing, and close the pipe. Does not block: processes
    that the child left behind may still hold the other end."""
    try:
        return os.read(ready, 1)
    except BlockingIOError:
        return b""
    finally:
        os.close(ready)


def _end_with_supervisor(alive: int) -> None:
    os.read(alive, 1)  # nothing is ever written; the call returns when the supervisor's end is closed
    os.kill(os.getpid(), signal.SIGTERM)
