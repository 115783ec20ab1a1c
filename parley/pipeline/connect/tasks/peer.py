"""Two processes that call each other over one connection: the worker, and a host of tasks in an executor.

Rules:

1. What is said by `tell` and `call` reaches the other end in the order in which it was said here, and nobody waits for
   the connection. What was told is done in that order by the thread that reads: it must be quick. What was called is
   done in a thread of its own, and the caller waits for the answer; errors come back as ConnectError.
2. Each end sends its own time every `BEAT_S`, and has it sent back. If nothing came back of what it has sent within the
   last `SILENCE_S` it takes the other end for dead, as it does when the connection ends: waiting calls then raise
   `PeerLost`, and it sends nothing back any more. It is when a beat was sent that counts, not when it was read: an end
   that was stopped for a while, and finds beats in its buffer, knows by its own clock (`is_leased`) that it has been
   given up, before any of its threads has noticed. So of two ends none believes longer than `SILENCE_S` in the other
   after that one has given it up.
3. Messages are pickles: they travel over a connection on which only the two can send (`Sealed`). What cannot be
   pickled, or read at the other end, fails its call and no other.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.tasks.sealed import Sealed, Stranger

__all__ = ["Peer", "PeerLost", "clock_s"]

BEAT_S: Final = 2.0
SILENCE_S: Final = 15.0
STOP_S: Final = 5.0
"""How long a host that has lost its worker may take to stop its tasks; what runs then ends with its process."""
_CALLS_AT_ONCE: Final = 8

_log = logging.getLogger(__name__)

Message = tuple[str, Any, bytes]
"""What it is; the method, the call's number with it, or the time of a beat; the arguments or the answer, pickled."""


def clock_s() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class PeerLost(ConnectError):
    """The other process has ended, or cannot be reached."""


class Peer:
    """One end of the connection. `target` has the methods that the other end may call.

    `on_lost` is called once, when the other end is gone, before calls that wait come back.
    """

    def __init__(
        self, connection: Sealed, target: object, on_lost: Callable[[], None], *, now_s: Callable[[], float] = clock_s
    ) -> None:
        self._connection = connection
        self._target = target
        self._on_lost = on_lost
        self._now_s = now_s
        self._outgoing: SimpleQueue[Message] = SimpleQueue()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._calls = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="connect call")
        self._ending = threading.Lock()
        self._lost = threading.Event()
        self._answered_s = now_s()
        """When the newest beat was sent that has come back."""

    def start(self) -> None:
        """Begin to listen and to speak."""
        for work in (self._read, self._write):
            threading.Thread(target=work, name="connect peer", daemon=True).start()

    @property
    def is_leased(self) -> bool:
        """Whether the other end cannot yet have given up this one."""
        return not self._lost.is_set() and self._now_s() - self._answered_s < SILENCE_S

    def tell(self, method: str, *arguments: Any) -> None:
        """Have the other end do something. Raises PeerLost, and ConnectError for what cannot be sent."""
        self._say("tell", method, _pickled(arguments))

    def call(self, method: str, *arguments: Any) -> Any:
        """What the other end's method answers. Raises as `tell`, and what the method raises."""
        content = _pickled(arguments)
        number = next(self._numbers)
        waiting = self._waiting[number] = Future[Any]()
        try:
            self._say("call", (number, method), content)
            return waiting.result()
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """End the connection."""
        self._end()

    def _say(self, kind: str, what: Any, content: bytes) -> None:
        self._outgoing.put((kind, what, content))
        if self._lost.is_set():
            raise PeerLost("the other process has ended, or cannot be reached")

    def _write(self) -> None:
        beat_s = self._now_s()
        try:
            while not self._lost.is_set():
                now_s = self._now_s()
                if now_s >= beat_s:
                    beat_s = now_s + BEAT_S
                    self._connection.send(("beat", now_s, b""))
                try:
                    message = self._outgoing.get(timeout=max(0.0, beat_s - self._now_s()))
                except Empty:
                    continue
                self._connection.send(message)
        except (OSError, ValueError, TypeError) as error:
            _log.debug("writing to another process: %s", error)
        finally:
            self._end()

    def _read(self) -> None:
        try:
            while self.is_leased:
                if self._connection.poll(BEAT_S):
                    self._take(self._connection.recv())
        except Stranger as error:
            _log.error("The connection to another process is given up: %s. Is somebody in the network?", error)
        except (OSError, EOFError, ValueError, TypeError, RuntimeError) as error:  # it may be closed at any moment
            _log.debug("reading from another process: %s", error)
        finally:
            self._end()

    def _take(self, message: Message) -> None:
        kind, what, content = message
        match kind:
            case "beat":
                self._outgoing.put(("heard", what, b""))
            case "heard":
                self._answered_s = max(self._answered_s, what)
            case "tell":
                try:
                    getattr(self._target, what)(*pickle.loads(content))
                except Exception as error:
                    _log.error("%s, asked for by another process, failed: %s", what, error, exc_info=error)
            case "call" if not self._lost.is_set():
                number, method = what
                self._calls.submit(self._answer, number, method, content)
            case "done" | "failed" if (waiting := self._waiting.get(what)) is not None:
                try:
                    answer = pickle.loads(content)
                except Exception as error:
                    kind, answer = "failed", f"the answer cannot be read: {error}"
                with suppress(InvalidStateError):  # the connection has ended meanwhile
                    if kind == "done":
                        waiting.set_result(answer)
                    else:
                        waiting.set_exception(ConnectError(answer))

    def _answer(self, number: int, method: str, content: bytes) -> None:
        try:
            kind, answer = "done", _pickled(getattr(self._target, method)(*pickle.loads(content)))
        except Exception as error:
            kind, answer = "failed", _pickled(str(error))
        self._outgoing.put((kind, number, answer))

    def _end(self) -> None:
        with self._ending:
            if self._lost.is_set():
                return
            self._lost.set()
        self._connection.close()
        self._calls.shutdown(wait=False)
        self._on_lost()
        for waiting in list(self._waiting.values()):
            with suppress(InvalidStateError):
                waiting.set_exception(PeerLost("the other process has ended"))


def _pickled(content: object) -> bytes:
    try:
        return pickle.dumps(content)
    except Exception as error:  # whatever an object's own methods raise
        raise ConnectError(f"what was to be sent to another process cannot be: {error}") from error
