"""ISR maintenance for the partitions that this broker leads: it watches the followers and asks the controller for
changes.

Rules of this module:

* A follower that has caught up is proposed for the ISR immediately, by the fetch that shows it. A periodic check, at
  intervals of half of ``replica.lag.time.max.ms``, finds lagging followers.
* Each partition has at most one pending proposal. One AlterPartition request contains up to ``PROPOSED_MAX``
  waiting proposals. The leader counts the members of both ISRs until the response or the metadata shows which ISR is
  valid (KIP-497). So a proposal whose outcome is unknown is repeated until a new state of the partition has arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.types import PartitionState
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.isr_decisions import LeaderSnapshot, epochs_of, is_eligible, wanted_isr
from parley.broker.replication.partition import Partition
from parley.broker.runtime.tasks import TaskSet
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.replication import AlterPartitionRequest, AlterPartitionResponse
from parley.protocol.schema import Request
from parley.protocol.uuids import UUID

_log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.05, 1.0
REFUSED_S = 1.0
"""The pause in seconds after the controller has rejected an ISR of a partition, before another one is proposed."""
LOOKED_AT_IN_A_ROW = 500
"""The number of partitions checked before the event loop does other work."""
PROPOSED_MAX = 500
"""The maximum number of partitions in one request. The controller decides on them without a pause, in 10 ms."""
NAMED_MAX = 10
"""The maximum number of partitions named in one log line."""

_REFUSED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_REQUEST})
"""Errors after which the ISR has certainly not changed, and the same proposal would be rejected again immediately."""
_RETRIED = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR})

Key = tuple[UUID, int]
Isr = tuple[int, ...]


class AskController(Protocol):
    """Sends a request to the controller (``Peers.ask_controller``)."""

    def __call__(self, request: Request, *, version: int | None = None) -> Awaitable[Any]: ...


class _Proposal(NamedTuple):
    """The ISR proposed for one partition, and the state that the proposal changes."""

    partition: Partition
    state: PartitionState
    isr: tuple[int, ...]

    @property
    def is_due(self) -> bool:
        """True if this broker still leads, and no newer state of the partition has arrived."""
        partition = self.partition
        return (
            partition.is_open
            and partition.is_leader
            and partition.followers.has_proposed_isr
            and partition.state.partition_epoch == self.state.partition_epoch
        )


@dataclass(slots=True)
class IsrChanges:
    """The numbers, since the broker started, of ISRs that have shrunk and of ISRs that have expanded, among the
    partitions that this broker leads."""

    shrinks: int = 0
    expands: int = 0


class IsrMaintenance:
    """The ``IsrPolicy`` of a broker. ``run`` sends its proposals to the controller."""

    def __init__(
        self,
        broker_id: int,
        partitions: HostedPartitions,
        ask_controller: AskController,
        config: DynamicConfig,
        tasks: TaskSet,
        *,
        epoch: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        """``epoch`` returns this broker's epoch."""
        self.changes = IsrChanges()
        self._broker_id = broker_id
        self._partitions = partitions
        self._ask_controller = ask_controller
        self._config = config
        self._tasks = tasks
        self._epoch = epoch
        self._monotonic = monotonic
        self._proposals: dict[Key, _Proposal] = {}
        self._refused: dict[Key, float] = {}  # when the next ISR may be proposed
        self._wakeup = asyncio.Event()
        self._failures = FailureLog(_log)
        self._repeats = GrowingInterval(monotonic)

    async def run(self) -> None:
        """Check the followers and send proposals to the controller, until cancelled."""
        checking = self._tasks.start(self._check_periodically(), name="search for lagging followers")
        try:
            await self._send_proposals()
        finally:
            checking.cancel()

    # --- Followers ---

    @property
    def _lag_max_s(self) -> float:
        return self._config().replica_lag_time_max_ms / 1000

    def leader_epoch_began(self, partition: Partition) -> None:
        now_s = self._monotonic()
        for replica, progress in partition.followers.progress.items():
            if replica in partition.state.isr:
                progress.was_in_sync(now_s)

    def outsider_changed(self, partition: Partition, replica: int) -> None:
        self.outsider_fetched(partition, replica, self._monotonic())

    def outsider_fetched(self, partition: Partition, replica: int, now_s: float) -> None:
        self._update_close(partition, replica, now_s)
        self._check(partition, now_s)

    def _update_close(self, partition: Partition, replica: int, now_s: float) -> None:
        """Make the high watermark wait for a follower outside the ISR only if the follower is about to join."""
        progress = partition.followers.progress[replica]
        partition.set_joining(
            replica,
            progress.has_fetched
            and is_eligible(self._partitions.image.brokers.get(replica), progress.broker_epoch)
            and progress.is_caught_up(partition.log.log_end_offset, now_s, self._lag_max_s),
        )

    async def _check_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._lag_max_s / 2)
            now_s = self._monotonic()
            self._refused = {key: until_s for key, until_s in self._refused.items() if until_s > now_s}
            for number, partition in enumerate(list(self._partitions)):
                if partition.is_leader and partition.is_open and partition.followers.progress:
                    try:
                        self._check_all(partition, now_s)
                    except Exception as error:  # the other partitions are still checked
                        self._failures.report("checking followers failed", error, now_s, topic=partition.topic)
                if number % LOOKED_AT_IN_A_ROW == LOOKED_AT_IN_A_ROW - 1:
                    await asyncio.sleep(0)

    def _check_all(self, partition: Partition, now_s: float) -> None:
        for replica, progress in partition.followers.progress.items():
            if progress.is_joining:
                self._update_close(partition, replica, now_s)
        self._check(partition, now_s)

    def _check(self, partition: Partition, now_s: float) -> None:
        """Propose a new ISR if the current ISR should change."""
        key = (partition.topic_id, partition.index)
        if partition.followers.has_proposed_isr or self._refused.get(key, now_s) > now_s:
            return
        isr = wanted_isr(self._view(partition), self._partitions.image.brokers, now_s, self._lag_max_s)
        if isr is not partition.state.isr:
            partition.followers.propose_isr(isr)
            self._proposals[key] = _Proposal(partition, partition.state, isr)
            self._wakeup.set()

    def _view(self, partition: Partition) -> LeaderSnapshot:
        log = partition.log
        return LeaderSnapshot(
            self._broker_id,
            partition.state,
            partition.followers.progress,
            log.log_end_offset,
            log.high_watermark,
            partition.epoch_start_offset,
        )

    # --- Proposals ---

    async def _send_proposals(self) -> None:
        retry_s = RETRY_FIRST_S
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            requested = self._first_due()
            if not requested:
                continue
            try:
                response = await self._ask_controller(self._request(requested.values()))
                if response.error_code:
                    raise KafkaError(ErrorCode(response.error_code))
                self._take_all(response, requested)
                if any(key not in requested for key in self._proposals):
                    self._wakeup.set()
                self._repeats.restart()
                retry_s = RETRY_FIRST_S
            except KafkaError as error:
                if self._repeats.claim_line():  # without a controller, every second brings another failure
                    _log.info(
                        "retrying to send proposed ISRs to the controller",
                        extra={"partitions": len(requested), "reason": str(error)},
                    )
                retry_s = min(2 * retry_s, RETRY_MAX_S)
            except Exception as error:
                self._failures.report("proposing ISRs failed", error, self._monotonic())
                retry_s = RETRY_MAX_S
            if self._proposals:  # new proposals, or proposals to retry
                with suppress(TimeoutError):
                    async with asyncio.timeout(retry_s):
                        await self._wakeup.wait()
                self._wakeup.set()

    def _first_due(self) -> dict[Key, _Proposal]:
        """Return the first ``PROPOSED_MAX`` proposals that are still due, and drop the outdated ones before them."""
        due: dict[Key, _Proposal] = {}
        for key, proposal in list(self._proposals.items()):
            if len(due) == PROPOSED_MAX:
                break
            if proposal.is_due:
                due[key] = proposal
            else:
                del self._proposals[key]
        return due

    def _request(self, proposals: Iterable[_Proposal]) -> AlterPartitionRequest:
        own_epoch = self._epoch()
        topics: dict[UUID, AlterPartitionRequest.TopicData] = {}
        for partition, state, isr in proposals:
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = AlterPartitionRequest.TopicData(
                    topic_id=partition.topic_id, partitions=[]
                )
            members = epochs_of(self._view(partition), isr, own_epoch)
            topic.partitions.append(
                AlterPartitionRequest.PartitionData(
                    partition_index=partition.index,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=state.partition_epoch,
                    new_isr_with_epochs=[
                        AlterPartitionRequest.BrokerState(broker_id=replica, broker_epoch=epoch)
                        for replica, epoch in members
                    ],
                )
            )
        return AlterPartitionRequest(broker_id=self._broker_id, broker_epoch=own_epoch, topics=list(topics.values()))

    def _take_all(self, response: AlterPartitionResponse, requested: Mapping[Key, _Proposal]) -> None:
        now_s = self._monotonic()
        events: dict[tuple[str, Isr, Isr], list[Partition]] = {}
        for topic in response.topics:
            for outcome in topic.partitions:
                key = (topic.topic_id, outcome.partition_index)
                proposal = requested.get(key)
                if (
                    proposal is not None and self._proposals.get(key) is proposal
                ):  # else a newer proposal has replaced it
                    event = self._take(key, proposal, outcome, now_s)
                    if event:
                        events.setdefault((event, proposal.state.isr, proposal.isr), []).append(proposal.partition)
        for (event, before, wanted), partitions in events.items():  # one broker may change thousands of ISRs
            _log.info(event, extra=_facts(partitions, before, wanted))

    def _take(self, key: Key, proposal: _Proposal, outcome: AlterPartitionResponse.PartitionData, now_s: float) -> str:
        """Process the outcome for one partition. Returns the event to log, or "" if there is none."""
        partition, state, isr = proposal
        code = outcome.error_code
        del self._proposals[key]
        if code in _RETRIED:
            self._proposals[key] = proposal  # after the other proposals
            return ""
        if code in _REFUSED:
            self._refused[key] = now_s + REFUSED_S
            if proposal.is_due:
                partition.withdraw_isr()
            return f"the controller has rejected the proposed ISR: {ErrorCode(code).name}"
        if code:  # a newer state will arrive with the metadata
            return f"the proposed ISR is outdated: {ErrorCode(code).name}"
        self.changes.shrinks += len(set(state.isr).difference(isr)) > 0
        self.changes.expands += len(set(isr).difference(state.isr)) > 0
        if proposal.is_due:
            self._apply(partition, outcome)
        self._check_again(partition)  # other followers may have caught up meanwhile
        return "the ISR has changed"

    def _apply(self, partition: Partition, outcome: AlterPartitionResponse.PartitionData) -> None:
        """Apply the new state that the response contains. The metadata will deliver the same state again later."""
        partition.change(
            replace(
                partition.state,
                isr=tuple(outcome.isr),
                leader=outcome.leader_id,
                leader_epoch=outcome.leader_epoch,
                partition_epoch=outcome.partition_epoch,
            )
        )

    def _check_again(self, partition: Partition) -> None:
        if partition.is_leader and partition.is_open:
            self._check(partition, self._monotonic())


def _facts(partitions: Sequence[Partition], before: Isr, requested: Isr) -> dict[str, object]:
    """Return the log fields for partitions whose ISRs changed in the same way: the number of partitions, and the names
    of the first ones."""
    names = [f"{each.topic}-{each.index}" for each in partitions[:NAMED_MAX]]
    more = [f"and {len(partitions) - NAMED_MAX} more"] if len(partitions) > NAMED_MAX else []
    return {
        "partitions": len(partitions),
        "names": " ".join(names + more),
        "before": ",".join(map(str, before)),
        "requested": ",".join(map(str, requested)),
    }
