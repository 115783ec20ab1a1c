"""The order in which TLS handshakes get their threads, and the event loop their results.

A step of a handshake waits until the steps before it are done. A few steps go to a thread together, and their results
come back together: a thousand clients that connect at once cost the event loop a short turn per handful of them, in
which other connections have theirs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, NamedTuple

from parley.broker.runtime.threads import HANDSHAKES
from parley.broker.security.principal import Principal

STEPS_AT_ONCE: Final = 4
"""Steps that go to a thread together. Their results take the event loop a millisecond."""

Work = Callable[[], Principal | None]
"""A step, run in a thread: returns the client's principal at the end of the handshake, None before."""


class Done(NamedTuple):
    """The result of a step, or its error."""

    principal: Principal | None
    error: BaseException | None = None


class Handshakes:
    """Runs the steps of the handshakes of one event loop."""

    def __init__(self, executor: Executor | None) -> None:
        """``executor`` has ``HANDSHAKES`` threads; None means the executor of the event loop."""
        self._executor = executor
        self._waiting: deque[tuple[Work, Callable[[Done], None]]] = deque()
        self._running = 0

    def step(self, work: Work, done: Callable[[Done], None]) -> None:
        """Run ``work`` in a thread, and call ``done`` on the event loop."""
        self._waiting.append((work, done))
        if self._running < HANDSHAKES:
            self._begin()

    def _begin(self) -> None:
        steps = [self._waiting.popleft() for _ in range(min(STEPS_AT_ONCE, len(self._waiting)))]
        self._running += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, _run, [work for work, _ in steps])
        future.add_done_callback(lambda future: self._finish([done for _, done in steps], future))

    def _finish(self, callbacks: list[Callable[[Done], None]], future: asyncio.Future[list[Done]]) -> None:
        self._running -= 1
        if future.cancelled() or future.exception() is not None:
            results = [Done(None, asyncio.CancelledError("the broker stops"))] * len(callbacks)
        else:
            results = future.result()
        if self._waiting:
            self._begin()
        for callback, result in zip(callbacks, results, strict=True):
            try:
                callback(result)
            except Exception as error:  # the others of the batch get their results all the same
                message = "the result of a TLS handshake cannot be handled"
                asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


def _run(steps: list[Work]) -> list[Done]:
    return [_done(work) for work in steps]


def _done(work: Work) -> Done:
    try:
        return Done(work())
    except Exception as error:
        return Done(None, error)
