"""One shard of a coordinator while this broker leads its partition: its events and its appends.

* Events are queued. A turn handles up to ``EVENTS_PER_TURN`` of them. It applies each decision's records to the state
  immediately, so that the next decision sees them, and usually appends the records of all decisions in one batch. An
  event submitted with ``at_once`` gets a separate turn during ``submit``, unless other events are queued.
* The log may reject a transactional batch or a marker because of its producer's epoch. They are therefore appended
  first and applied afterwards, so that a rejection affects only their caller.
* A reply is sent when the in-sync replicas have everything that was appended before it (``waiting_replies.py``).
  ``read`` and ``decide_when_committed`` check that immediately. ``decide_at_once`` does not wait for it if it writes
  nothing.
* A turn first checks that the log is writable. If an append fails nevertheless, or the turn fails unexpectedly, state
  and log may differ. The shard is then lost: it closes, and the runtime reloads it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from parley.broker.coordinators.decision import UNEXPECTED, Decision, Held, KeyValue, ShardState
from parley.broker.coordinators.internal_topic import ShardLog, coordinator_error
from parley.broker.coordinators.shard_timers import ShardTimers
from parley.broker.coordinators.waiting_replies import Reply, WaitingReplies
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metrics.catalogue.coordinators import CoordinatorMetrics
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.batch_header import HEADER_SIZE
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker

T = TypeVar("T")
S = TypeVar("S", bound=ShardState)

_log = logging.getLogger(__name__)

EVENTS_MAX: Final = 50_000
"""The maximum number of events of a shard that are queued or wait for replicas. Further events get
COORDINATOR_LOAD_IN_PROGRESS."""

EVENTS_PER_TURN: Final = 1_000
"""The maximum number of events in one turn, which take about 10 ms, so that the event loop serves other clients in
between."""

RECORD_BYTES: Final = 24
"""The maximum overhead of a record in a batch, in bytes, on top of its key and value."""


def size_in_batch(records: Sequence[KeyValue]) -> int:
    """Return an upper bound for the size of the records in a batch, in bytes, without the batch's header."""
    return sum(len(key) + len(value or b"") + RECORD_BYTES for key, value in records)


class _Event(NamedTuple):
    decide: Callable[[Any, int], Decision[Any]]
    future: asyncio.Future[Any]


class _MarkerEvent(NamedTuple):
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
    future: asyncio.Future[Any]


@dataclass(slots=True)
class _Turn:
    """The records, replies and effects that one turn of the event loop has decided so far."""

    now_ms: int
    unwritable: KafkaError | None
    offset: int
    """The offset that the next record of this turn will get."""
    batch_bytes_max: int
    records: list[KeyValue] = field(default_factory=list)
    """The records that were applied to the state and not yet appended to the log."""
    size: int = HEADER_SIZE
    replies: list[Reply] = field(default_factory=list)
    effects: list[Callable[[], None]] = field(default_factory=list)
    has_appended: bool = False


class _Lost(Exception):
    """Raised if the shard's state and its log may differ, so that the state must be reloaded."""


class Shard(Generic[S]):
    """The state machine of one partition, after it was loaded and until this broker resigns."""

    def __init__(
        self,
        log: ShardLog,
        state: S,
        *,
        loaded_offset: int,
        now_ms: Callable[[], int],
        timeout_ms: Callable[[], int],
        metrics: CoordinatorMetrics,
        on_lost: Callable[[Shard[S]], None],
        facts: Mapping[str, object],
    ) -> None:
        """``state`` contains all records before ``loaded_offset``. ``facts`` identify the partition in log lines.

        ``timeout_ms()`` returns how long a reply waits for the replicas. ``on_lost`` is called after the shard has
        closed itself because its state must be reloaded from the log.
        """
        self.state = state
        self._metrics = metrics
        self._log = log
        self._now_ms = now_ms
        self._on_lost = on_lost
        self._facts = facts
        self._queue: deque[_Event | _MarkerEvent] = deque()
        self._has_turn = False
        self._last_offset = loaded_offset - 1
        self._has_foreign_records = False
        self._held: dict[Hashable, asyncio.Future[Any]] = {}
        self.timers = ShardTimers(self.submit)
        self._closed: ErrorCode | None = None
        self._failures = FailureLog(_log)
        self._waiting = WaitingReplies(log, timeout_ms=timeout_ms, metrics=metrics, failures=self._failures)
        log.subscribe(self)

    @property
    def queued(self) -> int:
        """The number of queued events."""
        return len(self._queue)

    # --- Events ---

    def submit(self, decide: Callable[[S, int], Decision[T]], *, at_once: bool = False) -> asyncio.Future[T]:
        """Decide in the next turn of the event loop, as ``CoordinatorRuntime.submit`` describes."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enqueue(_Event(decide, future), at_once=at_once)
        return future

    def read(self, decide: Callable[[S, int], Decision[T]]) -> T | None:
        """Decide immediately, ahead of the queued events, and return the reply, or None if ``submit`` is needed, as
        ``CoordinatorRuntime.read`` describes."""
        if self._closed is not None:
            raise KafkaError(self._closed)
        if not self._log.is_committed(self._last_offset):
            return None
        decision = decide(self.state, self._now_ms())
        if decision.records:
            return None
        assert not isinstance(decision.reply, Held), "a read does not wait for a later decision"
        return decision.reply

    def decide_at_once(self, decide: Callable[[S, int], Decision[T]]) -> T | asyncio.Future[T]:
        """Decide now if the decision writes nothing, as ``CoordinatorRuntime.decide_at_once`` describes."""
        if self._closed is not None:
            raise KafkaError(self._closed)
        decision = decide(self.state, self._now_ms())
        if decision.records or decision.then is not None:
            return self.submit(decide)
        released = self._release(decision) if decision.released else []
        reply: T | asyncio.Future[T]
        if isinstance(decision.reply, Held):
            reply = self._held[decision.reply.key] = asyncio.get_running_loop().create_future()
        else:
            reply = decision.reply
        self._take_effect(decision, released)
        return reply

    def decide_when_committed(self, decide: Callable[[S, int], Decision[T]]) -> T | asyncio.Future[T]:
        """Decide now if the decision writes nothing and all earlier records are committed, as
        ``CoordinatorRuntime.decide_when_committed`` describes."""
        if self._closed is not None:
            raise KafkaError(self._closed)
        if self._queue or not self._log.is_committed(self._last_offset):
            return self.submit(decide)
        return self.decide_at_once(decide)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int = 0,
    ) -> asyncio.Future[None]:
        """Append a marker in the next turn of the event loop, as ``CoordinatorRuntime.append_marker`` describes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(
            _MarkerEvent(producer_id, producer_epoch, committed, coordinator_epoch, transaction_version, future)
        )
        return future

    def _enqueue(self, event: _Event | _MarkerEvent, *, at_once: bool = False) -> None:
        if self._closed is not None:
            raise KafkaError(self._closed)
        if len(self._queue) + self._waiting.count >= EVENTS_MAX:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The coordinator has too many requests: retry.")
        self._queue.append(event)
        if at_once and not self._has_turn:
            self._has_turn = True
            self._take_turn()
        else:
            self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        if self._queue and not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        if self._closed is not None:
            return
        replies: list[Reply] = []
        try:
            turn = self._begin_turn(replies)
            for _ in range(min(EVENTS_PER_TURN, len(self._queue))):
                self._handle(self._queue.popleft(), turn)
            self._flush(turn)
            self._waiting.add(self._last_offset, turn.replies, turn.effects, has_appended=turn.has_appended)
        except _Lost as lost:
            self._lose(replies, lost.__cause__)
            return
        except UNEXPECTED as error:  # without this, the shard would never have another turn
            self._failures.report("a coordinator's turn failed", error, _loop_time())
            self._lose(replies, error)
            return
        self._has_turn = False
        self._ask_for_turn()

    def _begin_turn(self, replies: list[Reply]) -> _Turn:
        try:
            self._log.check_writable()
            end_offset = self._log.end_offset
            if end_offset > self._last_offset + 1 and not self._has_foreign_records:
                self._has_foreign_records = True
                facts = {**self._facts, "offset": self._last_offset + 1}
                _log.warning(
                    "a client wrote to a coordinator's partition: these records take effect at the next load",
                    extra=facts,
                )
            return _Turn(self._now_ms(), None, end_offset, self._log.batch_bytes_max, replies=replies)
        except KafkaError as error:
            return _Turn(self._now_ms(), coordinator_error(error), self._last_offset + 1, 0, replies=replies)

    def _handle(self, event: _Event | _MarkerEvent, turn: _Turn) -> None:
        try:
            if isinstance(event, _MarkerEvent):
                self._append_marker(event, turn)
                turn.replies.append(Reply(event.future, None))
                return
            decision = event.decide(self.state, turn.now_ms)
            self._write(decision, turn)
        except _Lost:
            Reply(event.future, None).fail(KafkaError(ErrorCode.NOT_COORDINATOR))
            raise
        except KafkaError as error:
            Reply(event.future, None).fail(coordinator_error(error))
            return
        except UNEXPECTED as error:
            self._failures.report("a coordinator's decision failed", error, _loop_time())
            Reply(event.future, None).fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        released = self._release(decision)
        if isinstance(decision.reply, Held):
            self._held[decision.reply.key] = event.future
        else:
            turn.replies.append(Reply(event.future, decision.reply))
        if decision.records:
            turn.replies += released
        self._take_effect(decision, released)
        if decision.then is not None:
            turn.effects.append(decision.then)

    def _release(self, decision: Decision[Any]) -> list[Reply]:
        """Stop holding the callers that the decision releases, and return their replies."""
        held = self._held
        return [Reply(held.pop(key), value) for key, value in decision.released.items() if key in held]

    def _take_effect(self, decision: Decision[Any], released: list[Reply]) -> None:
        """Set timers, change the state that is not stored, and send ``released`` if the decision has no records."""
        if not decision.records:
            for reply in released:
                reply.send()
        if decision.timers:
            self.timers.set(decision.timers)
        if decision.change is not None:
            decision.change()

    # --- Appends ---

    def _write(self, decision: Decision[Any], turn: _Turn) -> None:
        """Write the records of a decision, and apply them. Raises KafkaError if the log rejects them, or _Lost if the
        state may differ from the log."""
        if not decision.records:
            return
        try:
            self._write_records(decision, turn)
        except KafkaError as error:
            if decision.refused is not None:
                instead = decision.refused(self.state, turn.now_ms, error)
                self._take_effect(instead, self._release(instead))
            raise

    def _write_records(self, decision: Decision[Any], turn: _Turn) -> None:
        if turn.unwritable is not None:
            raise turn.unwritable
        if decision.producer is not None:
            batch = self._batch(decision.records, turn, decision)
            base = self._append_first(batch, turn)
            for index, (key, value) in enumerate(decision.records):
                self._replay(key, value, decision, base + index)
            return
        size = size_in_batch(decision.records)
        if size + HEADER_SIZE <= turn.batch_bytes_max or not decision.is_divisible:
            self._write_together(decision, decision.records, size, turn)
            return
        self._batch(
            [max(decision.records, key=lambda record: size_in_batch([record]))], turn
        )  # raises before the first record is written, if the largest does not fit
        for record in decision.records:
            self._write_together(decision, [record], size_in_batch([record]), turn)

    def _write_together(self, decision: Decision[Any], records: Sequence[KeyValue], size: int, turn: _Turn) -> None:
        """Apply records of a decision, and add them to one batch. Raises MESSAGE_TOO_LARGE, or _Lost if a record could
        not be applied."""
        if size + HEADER_SIZE > turn.batch_bytes_max:
            self._batch(records, turn, decision)  # ``size`` is an upper limit: raises if the batch is really too large
        if turn.records and turn.size + size > turn.batch_bytes_max:
            self._flush(turn)
        turn.size += size
        for key, value in records:
            self._replay(key, value, decision, turn.offset)
            turn.records.append((key, value))
            turn.offset += 1

    def _replay(self, key: bytes, value: bytes | None, decision: Decision[Any], offset: int) -> None:
        try:
            self.state.replay(key, value, decision.producer, offset)
        except UNEXPECTED as error:  # the state may have changed partially
            self._failures.report("a coordinator could not apply its own record", error, _loop_time())
            raise _Lost from error

    @staticmethod
    def _batch(records: Sequence[KeyValue], turn: _Turn, decision: Decision[Any] | None = None) -> bytearray:
        """Encode the records as a batch. Raises MESSAGE_TOO_LARGE if the topic does not accept it."""
        now_ms = turn.now_ms
        rows = [(0, now_ms, key, value, ()) for key, value in records]
        if decision is None or decision.producer is None:
            batch = build(rows)
        else:
            producer_id, epoch = decision.producer
            batch = build(rows, producer_id=producer_id, producer_epoch=epoch, transactional=True)
        if len(batch) > turn.batch_bytes_max:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A change of {len(batch)} bytes exceeds max.message.bytes={turn.batch_bytes_max} of the topic.",
            )
        return batch

    def _flush(self, turn: _Turn) -> None:
        """Append the records that were already applied to the state. Raises _Lost if the append fails."""
        if not turn.records:
            return
        try:
            batch = self._batch(turn.records, turn)
            expected = turn.offset - len(turn.records)
            if self._log.end_offset != expected:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"the log ends at offset {self._log.end_offset}, but should end at offset {expected}",
                )
            self._last_offset = self._log.append(batch)
        except UNEXPECTED as error:
            raise _Lost from error
        turn.records, turn.size, turn.has_appended = [], HEADER_SIZE, True
        self._metrics.appends += 1

    def _append_first(self, batch: bytearray, turn: _Turn, transaction_version: int = 0) -> int:
        """Append a batch that was not applied to the state yet, and return its first offset. Raises KafkaError if the
        log rejects it, or _Lost if the state may differ from the log."""
        self._flush(turn)
        base = turn.offset
        try:
            self._last_offset = self._log.append(batch, transaction_version=transaction_version)
        except KafkaError as error:
            raise coordinator_error(error) from error
        except UNEXPECTED as error:  # the log may contain the batch
            raise _Lost from error
        turn.offset, turn.has_appended = self._last_offset + 1, True
        self._metrics.appends += 1
        return base

    def _append_marker(self, event: _MarkerEvent, turn: _Turn) -> None:
        if turn.unwritable is not None:
            raise turn.unwritable
        kind = ControlType.COMMIT if event.committed else ControlType.ABORT
        batch = build_marker(
            ControlMarker(kind, event.coordinator_epoch),
            producer_id=event.producer_id,
            producer_epoch=event.producer_epoch,
            timestamp=turn.now_ms,
        )
        base = self._append_first(batch, turn, event.transaction_version)
        try:
            self.state.replay_marker(event.producer_id, event.producer_epoch, event.committed, base)
        except UNEXPECTED as error:
            self._failures.report("a coordinator could not apply its own marker", error, _loop_time())
            raise _Lost from error

    def _lose(self, replies: list[Reply], error: BaseException | None) -> None:
        facts = {**self._facts, "error": repr(error)}
        _log.error("coordinator reloads a partition: its state may differ from the log", extra=facts)
        for reply in replies:
            reply.fail(KafkaError(ErrorCode.NOT_COORDINATOR))
        try:
            self.close(ErrorCode.NOT_COORDINATOR)
        finally:
            self._on_lost(self)

    def on_change(self, key: Hashable, amount: int) -> None:
        """Send or fail the replies that no longer have to wait. The partition's log calls this after a change, as a
        ``Subscriber``."""
        self._waiting.settle()

    # --- The end ---

    def close(self, code: ErrorCode) -> None:
        """Cancel all timers, and fail everything that is queued, held or waits for the replicas with ``code``.
        Idempotent."""
        if self._closed is not None:
            return
        self._closed = code
        self._log.unsubscribe(self)
        self.timers.close()
        queue, self._queue = self._queue, deque()
        for event in queue:
            Reply(event.future, None).fail(KafkaError(code))
        self._waiting.close(KafkaError(code))
        held, self._held = self._held, {}
        for future in held.values():
            Reply(future, None).fail(KafkaError(code))
        self.state.unloaded()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
