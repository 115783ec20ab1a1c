"""Holds the replies of a shard until the in-sync replicas have everything that was appended before them.

Rules of this module:

* The effects of a turn (``Decision.then``) wait with its replies, and run after them.
* If the partition fails, the callers get its error, and the effects are dropped. If the only problem is that the ISR
  is too small, the effects keep waiting, because the ISR may grow again.
* A reply that waits too long fails, although the replicas may still store the records. The effects keep waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from parley.broker.coordinators.decision import UNEXPECTED
from parley.broker.coordinators.internal_topic import ShardLog, coordinator_error
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metrics.catalogue.coordinators import CoordinatorMetrics
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError


class NotCommittedInTime(KafkaError):
    """Raised if the in-sync replicas have not stored the records in time. They may still do so, and the state keeps the
    records."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "The in-sync replicas have not stored the change in time."
        )


class Reply(NamedTuple):
    """The reply to one caller."""

    future: asyncio.Future[Any]
    value: Any

    def send(self) -> None:
        """Send the reply, unless the caller no longer waits."""
        if not self.future.done():
            self.future.set_result(self.value)

    def fail(self, error: KafkaError) -> None:
        """Send the error in place of the reply, unless the caller no longer waits."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True)
class _WaitingTurn:
    """The replies and effects of one turn. They wait until the replicas have the log up to ``offset``."""

    offset: int
    since: float
    """The loop time at which the wait started."""
    has_appended: bool
    deadline: float
    replies: list[Reply]
    effects: list[Callable[[], None]]


class WaitingReplies:
    """The replies of one shard that wait for the replicas, in the order of its turns."""

    def __init__(
        self, log: ShardLog, *, timeout_ms: Callable[[], int], metrics: CoordinatorMetrics, failures: FailureLog
    ) -> None:
        self._log = log
        self._timeout_ms = timeout_ms
        self._metrics = metrics
        self._failures = failures
        self._turns: deque[_WaitingTurn] = deque()
        self._expiry: asyncio.TimerHandle | None = None
        self.count = 0
        """The number of replies that wait."""

    def add(self, offset: int, replies: list[Reply], effects: list[Callable[[], None]], *, has_appended: bool) -> None:
        """Send the replies of a turn, and then run its effects, when the in-sync replicas have the log up to and
        including ``offset``, perhaps immediately. ``has_appended`` is True if the turn itself appended records.

        Replies that wait longer than the timeout fail with ``NotCommittedInTime``.
        """
        if not replies and not effects:
            return
        if not has_appended and self._log.is_committed(offset):
            self._complete(replies, effects)
            return
        if has_appended and not self._turns and self._log.outcome(offset) is ErrorCode.NONE:
            self._metrics.commit_time.observe(0)  # this broker is the whole ISR
            self._complete(replies, effects)
            return
        now = asyncio.get_running_loop().time()
        self._turns.append(_WaitingTurn(offset, now, has_appended, now + self._timeout_ms() / 1000, replies, effects))
        self.count += len(replies)
        self.settle()
        self._set_expiry()

    def settle(self) -> None:
        """Send or fail the replies that no longer have to wait."""
        while self._turns:
            first = self._turns[0]
            code = self._log.outcome(first.offset)
            if code is None:
                return
            if code is ErrorCode.NONE:
                self._turns.popleft()
                self.count -= len(first.replies)
                if first.has_appended:
                    waited_s = asyncio.get_running_loop().time() - first.since
                    self._metrics.commit_time.observe(round(1_000_000 * waited_s))
                self._complete(first.replies, first.effects)
                continue
            self._fail_all(coordinator_error(KafkaError(code)))
            if code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                self._turns = deque(each for each in self._turns if each.effects)  # the ISR may grow again
            else:
                self._turns.clear()
            return

    def _complete(self, replies: list[Reply], effects: list[Callable[[], None]]) -> None:
        """Send the replies of a turn, then run its effects."""
        for reply in replies:
            reply.send()
        for effect in effects:
            try:
                effect()
            except UNEXPECTED as error:
                now_s = asyncio.get_running_loop().time()
                self._failures.report("a coordinator's effect failed", error, now_s)

    def close(self, error: KafkaError) -> None:
        """Fail all replies with ``error``, and drop the effects."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._fail_all(error)
        self._turns.clear()

    def _fail_all(self, error: KafkaError) -> None:
        for each in self._turns:
            self._fail(each, error)

    def _fail(self, turn: _WaitingTurn, error: KafkaError) -> None:
        replies, turn.replies = turn.replies, []
        self.count -= len(replies)
        for reply in replies:
            reply.fail(error)

    def _set_expiry(self) -> None:
        if self._expiry is None:
            deadline = next((each.deadline for each in self._turns if each.replies), None)
            if deadline is not None:
                loop = asyncio.get_running_loop()
                self._expiry = loop.call_later(max(0.0, deadline - loop.time()), self._expire)

    def _expire(self) -> None:
        self._expiry = None
        now = asyncio.get_running_loop().time()
        for each in self._turns:
            if each.deadline <= now:
                self._fail(each, NotCommittedInTime())
        self._turns = deque(each for each in self._turns if each.replies or each.effects)
        self._set_expiry()
