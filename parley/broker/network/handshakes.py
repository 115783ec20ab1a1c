"""Schedules the steps of TLS handshakes on threads, and their results on the event loop.

Hosts take turns: a step waits for the earlier steps of its host, and hardly for those of other hosts. A thread runs a
few steps at a time, and returns their results together. If a thousand clients connect at once, each small group of
results takes a short turn of the event loop, and other connections are served in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, NamedTuple

from parley.broker.runtime.round_robin import RoundRobin
from parley.broker.runtime.threads import HANDSHAKES
from parley.broker.security.principal import Principal

STEPS_AT_ONCE: Final = 4
"""The number of steps that a thread runs together. Handling their results takes the event loop a millisecond."""

Work = Callable[[], Principal | None]
"""A step, run in a thread. Returns the client's principal if the handshake is complete, else None."""


class Done(NamedTuple):
    """The result of a step, or its error."""

    principal: Principal | None
    error: BaseException | None = None


class _Waiting(NamedTuple):
    """A step that waits for a thread."""

    work: Work
    done: Callable[[Done], None]
    is_wanted: Callable[[], bool]


class Handshakes:
    """Runs the steps of the handshakes of one event loop."""

    def __init__(self, executor: Executor | None) -> None:
        """``executor`` has ``HANDSHAKES`` threads. None means the executor of the event loop."""
        self._executor = executor
        self._waiting: RoundRobin[_Waiting] = RoundRobin()
        self._running = 0

    def step(self, host: str, work: Work, done: Callable[[Done], None], is_wanted: Callable[[], bool]) -> None:
        """Run ``work`` in a thread when it is the turn of the client's ``host``, then call ``done`` on the event loop.

        If ``is_wanted`` returns False when the step's turn comes (the client has disconnected), neither happens.
        """
        self._waiting.add(host, _Waiting(work, done, is_wanted))
        if self._running < HANDSHAKES:
            self._begin()

    def _begin(self) -> None:
        """Start the next steps that are still wanted. No step is wanted once the broker is stopping, so that the
        threads can end."""
        steps: list[_Waiting] = []
        while self._waiting and len(steps) < STEPS_AT_ONCE:
            if (step := self._waiting.pop()).is_wanted():
                steps.append(step)
        if not steps:
            return
        self._running += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, _run, [step.work for step in steps])
        future.add_done_callback(lambda future: self._finish([step.done for step in steps], future))

    def _finish(self, callbacks: list[Callable[[Done], None]], future: asyncio.Future[list[Done]]) -> None:
        self._running -= 1
        if future.cancelled() or future.exception() is not None:
            results = [Done(None, asyncio.CancelledError("the broker is stopping"))] * len(callbacks)
        else:
            results = future.result()
        if self._waiting:
            self._begin()
        for callback, result in zip(callbacks, results, strict=True):
            try:
                callback(result)
            except Exception as error:  # the other callbacks still get their results
                message = "failed to handle the result of a TLS handshake"
                asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


def _run(steps: list[Work]) -> list[Done]:
    return [_done(work) for work in steps]


def _done(work: Work) -> Done:
    try:
        return Done(work())
    except Exception as error:
        return Done(None, error)
