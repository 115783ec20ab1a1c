"""Two processes that call each other over one connection: the worker, and a host of tasks in an executor.

Rules:

1. What is called by `tell` is done in the order it was told, by the thread that reads: it must be quick. What is called
   by `call` is done in a thread of its own, and the caller waits for the answer; errors come back as they were raised.
2. Both ends show life every `BEAT_S`. An end that hears nothing for `SILENCE_S` takes the other for dead, as it does
   when the connection ends: waiting calls then raise `PeerLost`.
3. Messages are pickles: they travel over a connection on which only the two can send (`Sealed`).
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from pipeline.connect.errors import ConnectError
from pipeline.connect.tasks.sealed import Sealed, Stranger

__all__ = ["Peer", "PeerLost"]

BEAT_S: Final = 5.0
SILENCE_S: Final = 30.0
_CALLS_AT_ONCE: Final = 8

_log = logging.getLogger(__name__)

Message = tuple[str, Any, Any]


class PeerLost(ConnectError):
    """The other process has ended, or cannot be reached."""


class Peer:
    """One end of the connection. `target` has the methods that the other end may call.

    `on_lost` is called once, by a thread of the peer, when the other end is gone.
    """

    def __init__(self, connection: Sealed, target: object, on_lost: Callable[[], None]) -> None:
        self._connection = connection
        self._target = target
        self._on_lost = on_lost
        self._writing = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._calls = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="connect call")
        self._lost = threading.Event()
        self.was_silent = False
        """Whether the other end was taken for dead because nothing was heard of it: it may yet live."""

    def start(self) -> None:
        """Begin to listen."""
        for work in (self._read, self._beat):
            threading.Thread(target=work, name="connect peer", daemon=True).start()

    def tell(self, method: str, *arguments: Any) -> None:
        """Have the other end do something. Raises PeerLost."""
        self._send(("tell", method, arguments))

    def call(self, method: str, *arguments: Any) -> Any:
        """What the other end's method answers. Raises PeerLost, and what the method raises."""
        number = next(self._numbers)
        waiting = self._waiting[number] = Future[Any]()
        try:
            self._send(("call", (number, method), arguments))
            if self._lost.is_set():
                raise PeerLost("the other process has ended")
            return waiting.result()
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """End the connection."""
        self._end()

    def _send(self, message: Message) -> None:
        try:
            with self._writing:
                self._connection.send(message)
        except (OSError, ValueError) as error:
            raise PeerLost(f"the other process cannot be reached: {error}") from error

    def _read(self) -> None:
        try:
            while self._connection.poll(SILENCE_S):
                self._take(self._connection.recv())
            self.was_silent = True
        except Stranger as error:
            _log.error("The connection to another process is given up: %s. Is somebody in the network?", error)
        except (OSError, EOFError, ValueError):
            pass
        finally:
            self._end()

    def _take(self, message: Message) -> None:
        kind, what, rest = message
        if kind == "tell":
            try:
                getattr(self._target, what)(*rest)
            except Exception as error:
                _log.error("%s, asked for by another process, failed: %s", what, error, exc_info=error)
        elif kind == "call":
            number, method = what
            self._calls.submit(self._answer, number, method, rest)
        elif kind in ("done", "failed"):
            waiting = self._waiting.get(what)
            if waiting is not None and kind == "done":
                waiting.set_result(rest)
            elif waiting is not None:
                waiting.set_exception(rest)

    def _answer(self, number: int, method: str, arguments: Any) -> None:
        with suppress(PeerLost):
            try:
                answer = getattr(self._target, method)(*arguments)
            except Exception as error:
                self._send(("failed", number, ConnectError(str(error))))
                return
            self._send(("done", number, answer))

    def _beat(self) -> None:
        with suppress(PeerLost):
            while not self._lost.wait(BEAT_S):
                self._send(("beat", None, None))

    def _end(self) -> None:
        if self._lost.is_set():
            return
        self._lost.set()
        with suppress(OSError):
            self._connection.close()
        for waiting in list(self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(PeerLost("the other process has ended"))
        self._calls.shutdown(wait=False)
        self._on_lost()
