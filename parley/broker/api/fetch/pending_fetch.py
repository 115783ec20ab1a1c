"""One fetch, from its first look at the partitions to its response, including the wait in between.

The states::

    LOOKING      the fetch looks at its partitions for the first time
    WAITING      too few bytes: the fetch is in the purgatory
    WOKEN        enough has changed: the fetch looks again as soon as the event loop is free
    RESPONDING   the response is being built (final)
    CANCELLED    the client has disconnected (final)

A woken fetch looks again after the event loop's current work, so that one response contains all records appended by
that work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from enum import IntEnum
from typing import Any

from parley.broker.api.fetch.dependencies import FetchDependencies
from parley.broker.api.fetch.params import TOPIC_IDS_VERSION, FetchParams
from parley.broker.api.fetch.plan import (
    Diverging,
    NoRecords,
    Omit,
    Read,
    Redirect,
    can_wait,
    check_access,
    is_at_end,
    plan_fetch,
    plan_omission,
)
from parley.broker.api.fetch.read import FetchReads, Found
from parley.broker.api.fetch.render import build_response, error_data, partition_data, render_throttled
from parley.broker.api.fetch.sessions import FetchSession, FetchTarget, PartitionData
from parley.broker.network.peers import is_broker
from parley.broker.replication.follower_progress import FetchClock
from parley.broker.replication.partition import Isolation, Partition
from parley.broker.runtime.purgatory import Delayed
from parley.broker.runtime.states import IllegalStep
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchResponse


class FetchState(IntEnum):
    """The state of a fetch. The module docstring explains each one."""

    LOOKING = 0
    WAITING = 1
    WOKEN = 2
    RESPONDING = 3
    CANCELLED = 4


class FetchEvent(IntEnum):
    """An event in the life of a fetch."""

    WAIT = 0
    """There are too few bytes."""
    ENOUGH = 1
    """The changes since the last look may be enough."""
    RESPOND = 2
    """There are enough bytes, there is an error, or the time has expired."""
    CANCEL = 3
    """The client has disconnected."""


_STEPS: dict[tuple[FetchState, FetchEvent], FetchState] = {
    (FetchState.LOOKING, FetchEvent.WAIT): FetchState.WAITING,
    (FetchState.LOOKING, FetchEvent.RESPOND): FetchState.RESPONDING,
    (FetchState.WAITING, FetchEvent.ENOUGH): FetchState.WOKEN,
    (FetchState.WAITING, FetchEvent.RESPOND): FetchState.RESPONDING,
    (FetchState.WAITING, FetchEvent.CANCEL): FetchState.CANCELLED,
    (FetchState.WOKEN, FetchEvent.WAIT): FetchState.WAITING,
    (FetchState.WOKEN, FetchEvent.RESPOND): FetchState.RESPONDING,
    (FetchState.WOKEN, FetchEvent.CANCEL): FetchState.CANCELLED,
}


_LOOKING, _WAITING, _WOKEN, _RESPONDING = (  # an attribute of an enum costs more than a global
    FetchState.LOOKING,
    FetchState.WAITING,
    FetchState.WOKEN,
    FetchState.RESPONDING,
)
_WAIT, _ENOUGH, _RESPOND = FetchEvent.WAIT, FetchEvent.ENOUGH, FetchEvent.RESPOND
_READ_COMMITTED, _AT_END = Isolation.READ_COMMITTED, NoRecords.AT_END


class PendingFetch(Delayed[Any]):
    """One fetch, as a future of its response. It enters the purgatory only if it must wait."""

    def __init__(self, dependencies: FetchDependencies, params: FetchParams, session: FetchSession | None) -> None:
        super().__init__()
        self._dependencies = dependencies
        self._params = params
        self._session = session
        self._consumers_read_here = dependencies.selector is not None
        self._checks_topics = (
            dependencies.authorization.is_enforced
            and not params.is_follower
            and not _is_from_broker(params, dependencies)
        )
        self._fetch_state = _LOOKING
        self._clock = FetchClock() if session is None else session.clock
        self._clock.fetched(params.context.received_at)
        self._reads = FetchReads(params, dependencies)
        self._found: Found = {}
        self._missing_bytes = 0
        self._must_respond = params.request.max_wait_ms <= 0
        self._changed: dict[FetchTarget, None] = {}
        self._watched: dict[Partition, FetchTarget] = {}  # only outside a session

    def _step(self, event: FetchEvent) -> None:
        try:
            self._fetch_state = _STEPS[self._fetch_state, event]
        except KeyError:
            raise IllegalStep("fetch", self._fetch_state, event) from None

    # --- Looking ---

    def look_at(self, targets: Iterable[FetchTarget]) -> None:
        """Plan the response for each partition, in this order, and locate the batches. A fetch without partitions does
        not wait."""
        for target in targets:
            self._look_at(target)
        if not (self._found if self._session is None else self._session.targets):
            self._must_respond = True  # no change could wake the fetch

    def look_at_what_was_missed(self) -> None:
        """Look again at partitions without records that have changed since the fetch looked at them.

        A waiting fetch is notified of changes, but a fetch that looks at its partitions in several turns is not. If the
        fetch is ready, it responds with what it has found.
        """
        if self.is_ready:
            return
        for target in self._found:
            partition = target.partition
            if partition is not None and not is_at_end(target, partition, self._params):
                self._changed[target] = None
        self._look_at_changed()

    @property
    def is_ready(self) -> bool:
        """True if there are enough bytes, there is an error, or the client does not want to wait."""
        return self._must_respond or self._reads.bytes >= self._params.request.min_bytes

    def _look_at(self, target: FetchTarget) -> None:
        try:
            session = self._session
            if session is None or not target.is_verified or not self._omit_if_unchanged(target, session):
                self._found[target] = self._carry_out_plan(target)
        except KafkaError as error:
            self._fail(target, error)
        except Exception as error:
            facts = {"topic": target.topic, "partition": target.index}
            self._dependencies.failures.report("Fetch failed", error, self._params.context.received_at, **facts)
            self._fail(target, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _fail(self, target: FetchTarget, error: KafkaError) -> None:
        self._must_respond = True
        self._found[target] = error_data(target, error, self._params, self._dependencies)

    def _omit_if_unchanged(self, target: FetchTarget, session: FetchSession) -> bool:
        """Omit a partition of the session if it has nothing new, or nothing urgent, for the client. Returns True if it
        is omitted."""
        is_progress_known = not self._params.is_follower or self._restore_progress(target)
        omit = plan_omission(
            target,
            self._params,
            may_defer=self._fetch_state is not _RESPONDING,
            consumers_read_here=self._consumers_read_here,
        )
        if omit is Omit.UNCHANGED and is_progress_known:
            session.changed.pop(target, None)
            self._found.pop(target, None)
        elif omit is Omit.CAN_WAIT:
            self._changed[target] = None
        return omit is not None

    def _restore_progress(self, target: FetchTarget) -> bool:
        """Record the follower's progress again if it was forgotten, or if a fetch outside its session changed it.

        In a session, a follower names a partition only if its fetch of the partition changes. It would therefore never
        correct the progress. Returns False if the next fetch must do this, because this fetch has already waited.
        """
        partition = target.partition
        progress = None if partition is None else partition.followers.progress.get(self._params.replica_id)
        if partition is None or progress is None or (progress.has_fetched and progress.is_reported_by(self._clock)):
            return True
        if self._fetch_state is not _LOOKING:
            return False
        if is_at_end(target, partition, self._params):
            self._count_progress(target, partition)
        return True

    def _carry_out_plan(self, target: FetchTarget) -> PartitionData:
        """Plan a partition's part of the response and carry the plan out, except for reading the records."""
        params, reads = self._params, self._reads
        if self._checks_topics:
            self._check_may_read(target)
        partition = self._find_and_bind(target)
        check_access(partition, target, params)
        log = partition.log
        if not params.is_follower:
            partition.counters.fetch_requests += 1
        plan = plan_fetch(target, partition, params, self._dependencies, reads.bytes, reads.max_bytes)
        if type(plan) is Diverging:
            data = partition_data(target.index, log)
            data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=plan.epoch, end_offset=plan.end_offset)
            self._must_respond = True
            return data
        target.is_verified, must_store_epoch = True, False
        if params.is_follower:
            if self._fetch_state is _LOOKING:  # the two logs agree up to the fetch offset
                self._count_progress(target, partition)
            if plan is _AT_END and not self._shows_required_epoch(target, partition):
                must_store_epoch = self._must_respond = True
                target.is_verified = False  # nothing may omit the partition until the follower has stored the epoch
            if self._consumers_read_here:
                self._must_respond |= target.known_high_watermark != log.high_watermark
        data = partition_data(target.index, log)
        if must_store_epoch:
            data.must_store_epoch = True
        if type(plan) is Redirect:
            data.preferred_read_replica = plan.replica_id
            self._must_respond = True
        elif type(plan) is Read and not reads.locate(target, partition, plan):
            self._must_respond = True
        return data

    def _check_may_read(self, target: FetchTarget) -> None:
        """Raise KafkaError (TOPIC_AUTHORIZATION_FAILED) if the consumer may not read the topic."""
        params, dependencies = self._params, self._dependencies
        name: str | None = target.topic
        if params.context.api_version >= TOPIC_IDS_VERSION:
            name = dependencies.metadata.image.topic_names.get(target.topic_id)
        if name and not dependencies.authorization.may(params.context, Operation.READ, ResourceType.TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _find_and_bind(self, target: FetchTarget) -> Partition:
        """Return the partition that the target names, by topic name or topic id, and store it in the target.

        Raises KafkaError: UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID, and the errors of ``HostedPartitions.find``.
        """
        uses_ids = self._params.context.api_version >= TOPIC_IDS_VERSION
        if uses_ids:
            name = self._dependencies.metadata.image.topic_names.get(target.topic_id)
            if name is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            target.topic = name
        partition = self._dependencies.partitions.find(target.topic, target.index)
        if uses_ids and partition.topic_id != target.topic_id:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
        target.bind(partition)
        return partition

    def _count_progress(self, target: FetchTarget, partition: Partition) -> None:
        """Record that the follower has all records before its fetch offset.

        Raises KafkaError (OFFSET_OUT_OF_RANGE) if the offset is outside the log.
        """
        if not partition.log.log_start_offset <= target.offset <= partition.log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        params = self._params
        partition.follower_fetched(
            params.replica_id,
            target.offset,
            target.log_start_offset,
            self._clock,
            params.broker_epoch,
            counts=self._shows_required_epoch(target, partition),
        )

    def _shows_required_epoch(self, target: FetchTarget, partition: Partition) -> bool:
        """Return True if the follower's log shows the epoch that the leader requires before it counts the follower
        (``Partition.required_epoch``). A follower of an older version always counts."""
        required, client = partition.required_epoch, self._session or self._params.request
        return target.last_fetched_epoch >= required or target.stored_epoch >= required or not client.stores_epochs

    # --- Waiting ---

    def wait(self, timeout_s: float) -> None:
        """Enter the purgatory. The fetch responds when there are enough bytes, or after ``timeout_s`` seconds with what
        it has found."""
        self._step(_WAIT)
        self._missing_bytes = self._params.request.min_bytes - self._reads.bytes
        if self._session is not None:
            self._session.waiting = self  # the session's targets subscribe to their partitions, and pass changes on
            self._dependencies.purgatory.watch(self, (self._session,), timeout_s)
        else:
            self._watched = {target.partition: target for target in self._found if target.partition is not None}
            self._dependencies.purgatory.watch(self, self._watched, timeout_s)

    def on_change(self, key: Hashable, amount: int) -> bool:
        assert isinstance(key, Partition)
        self.partition_changed(self._watched[key], amount)
        return True

    def partition_changed(self, target: FetchTarget, amount: int) -> None:
        """Handle a change in a partition: ``amount`` bytes were appended, or something else changed if ``amount`` is 0.

        A change beyond the start of the first open transaction does not affect a read_committed consumer.
        """
        self._changed[target] = None
        if self._params.isolation is _READ_COMMITTED and self._is_held_up(target):
            return
        self._missing_bytes -= amount
        if self._fetch_state is _WAITING and (
            self._missing_bytes <= 0
            if amount
            else not can_wait(target, self._params, consumers_read_here=self._consumers_read_here)
        ):
            self._step(_ENOUGH)
            self.get_loop().call_soon(self._look_again)

    def _is_held_up(self, target: FetchTarget) -> bool:
        """Return True if open transactions hide all records of the partition that the client does not have yet."""
        partition = target.partition
        return (
            partition is not None
            and is_at_end(target, partition, self._params)
            and target.offset < partition.log.high_watermark
        )

    def _look_again(self) -> None:
        if self._fetch_state is not _WOKEN:
            return  # the time has expired, or the client has disconnected
        self._run(self._look_now)

    def _run(self, step: Callable[[], None]) -> None:
        """Run a step outside a handler's call. Its time counts toward the client's quota, too."""
        quotas = self._dependencies.quotas
        if quotas.is_active:
            quotas.time_step(self._params.context, step)
        else:
            step()

    def _look_now(self) -> None:
        self._look_at_changed()
        if self.is_ready:
            self._finish()
        else:
            self._step(_WAIT)
            self._missing_bytes = self._params.request.min_bytes - self._reads.bytes

    def _look_at_changed(self) -> None:
        changed, self._changed = self._changed, {}
        for target in changed:
            self._reads.drop(target)
            self._look_at(target)

    def expired(self) -> None:
        self._run(self._finish)

    def next_request_arrived(self) -> None:
        if self._params.is_follower and not self.done():
            self._finish()

    def cancel(self, msg: object = None) -> bool:
        if not self.done():
            self._step(FetchEvent.CANCEL)
        return super().cancel(msg)

    def _leave(self) -> None:
        if self._session is not None and self._session.waiting is self:
            self._session.waiting = None
        super()._leave()

    # --- Responding ---

    def _finish(self) -> None:
        try:
            response = self.respond()
        except Exception as error:
            self.fail(error)
            return
        if asyncio.iscoroutine(response):
            self.complete(self._dependencies.tasks.start(response, name="fetch from disk"))
        else:
            self.complete(response)

    def respond(self) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        """Return the response, or a coroutine that returns it if a thread must read records. If the client exceeds its
        quota, the response contains no records."""
        self._step(_RESPOND)
        self._look_at_changed()
        counted = self._reads.bytes
        if self._dependencies.quotas.is_active:
            throttle_ms = self._dependencies.quotas.throttle_fetch_ms(
                self._params.context, counted, has_more=self._reads.need_disk
            )
            if throttle_ms:
                return render_throttled(throttle_ms, self._session)
        filling = self._reads.fill(self._found)
        if filling is not None:
            return self._respond_after(filling, counted)
        return build_response(self._found, self._session, self._params, self._dependencies)

    async def _respond_after(self, filling: Coroutine[Any, Any, None], counted: int) -> FetchResponse:
        """Wait for the disk, then respond. The quota already includes ``counted`` bytes. The rest is counted now."""
        await filling
        if self._dependencies.quotas.is_active and self._reads.bytes > counted:
            self._dependencies.quotas.record_fetch(self._params.context, self._reads.bytes - counted)
        return build_response(self._found, self._session, self._params, self._dependencies)


def _is_from_broker(params: FetchParams, dependencies: FetchDependencies) -> bool:
    """Return True if a broker fetches as a consumer, to heal its own log."""
    return is_broker(params.context.client_id) and dependencies.authorization.is_broker(params.context.session)
