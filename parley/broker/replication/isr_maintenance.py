"""Keeping the ISR of the partitions this broker leads: looking at the followers, and asking the controller.

Rules of this module:

* A follower that has arrived is asked in at once, at the fetch that shows it; who lags is looked for every half
  of ``replica.lag.time.max.ms``.
* One change of a partition is asked for at a time; all that wait go in one AlterPartition. The leader counts the
  members of both ISRs until it knows which one holds (KIP-497): from the answer, or from the metadata if they are
  first. So an ask whose fate is unknown is repeated until a new state of the partition has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.types import PartitionState
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.isr_decisions import LeaderSnapshot, epochs_of, is_eligible, wanted_isr
from parley.broker.replication.partition import Partition
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.replication import AlterPartitionRequest, AlterPartitionResponse
from parley.protocol.schema import Request

_log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.05, 1.0
REFUSED_S = 1.0
"""How long a partition's ISR is left alone after the controller has refused to change it."""
LOOKED_AT_IN_A_ROW = 500
"""Partitions looked at before the loop serves others."""
NAMED_MAX = 10
"""Partitions named in one line of the log."""

_REFUSED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_REQUEST})
"""The change was certainly not made, and asking again at once makes no sense."""
_RETRIED = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR})

Key = tuple[UUID, int]
Isr = tuple[int, ...]


class AskController(Protocol):
    """Sends a request to the controller; :meth:`parley.broker.network.peers.Peers.ask_controller`."""

    def __call__(self, request: Request, *, version: int | None = None) -> Awaitable[Any]: ...


class _Wish(NamedTuple):
    """What is asked for one partition, and the state that it starts from."""

    partition: Partition
    state: PartitionState
    isr: tuple[int, ...]

    @property
    def is_due(self) -> bool:
        """Whether this broker still leads, and no newer state of the partition has come since."""
        partition = self.partition
        return (
            partition.is_open
            and partition.is_leader
            and partition.is_asking
            and partition.state.partition_epoch == self.state.partition_epoch
        )


@dataclass(slots=True)
class IsrChanges:
    """What became of the ISRs of partitions led here, for the metrics."""

    shrinks: int = 0
    expands: int = 0


class IsrMaintenance:
    """Keeps the ISRs while :meth:`run` runs. An :class:`parley.broker.replication.partition.IsrPolicy`."""

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
        self._wishes: dict[Key, _Wish] = {}
        self._refused: dict[Key, float] = {}  # when the controller may be asked again
        self._news = asyncio.Event()
        self._failures = FailureLog(_log)

    async def run(self) -> None:
        """Look at the followers and ask the controller, until cancelled."""
        looking = self._tasks.start(self._look_from_time_to_time(), name="search for lagging replicas")
        try:
            await self._ask_from_now_on()
        finally:
            looking.cancel()

    # Looking.

    @property
    def _lag_max_s(self) -> float:
        return self._config().replica_lag_time_max_ms / 1000

    def term_began(self, partition: Partition) -> None:
        now_s = self._monotonic()
        for replica, progress in partition.followers.items():
            if replica in partition.state.isr:
                progress.was_in_sync(now_s)

    def broker_changed(self, broker_id: int) -> None:
        now_s = self._monotonic()
        for partition in self._partitions:
            if partition.is_open and broker_id in partition.followers and broker_id not in partition.state.isr:
                self.outsider_fetched(partition, broker_id, now_s)

    def outsider_fetched(self, partition: Partition, replica: int, now_s: float) -> None:
        self._wait_or_not(partition, replica, now_s)
        self._look_at(partition, now_s)

    def _wait_or_not(self, partition: Partition, replica: int, now_s: float) -> None:
        """Let the high watermark wait for an outsider that is about to arrive, or no longer."""
        progress = partition.followers[replica]
        partition.wait_for(
            replica,
            is_eligible(self._partitions.image.brokers.get(replica), progress.broker_epoch)
            and progress.is_caught_up(partition.log.log_end_offset, now_s, self._lag_max_s),
        )

    async def _look_from_time_to_time(self) -> None:
        while True:
            await asyncio.sleep(self._lag_max_s / 2)
            now_s = self._monotonic()
            self._refused = {key: until_s for key, until_s in self._refused.items() if until_s > now_s}
            for number, partition in enumerate(list(self._partitions)):
                if partition.is_leader and partition.is_open and partition.followers:
                    try:
                        self._look_at_all(partition, now_s)
                    except Exception as error:  # the other partitions need it all the same
                        self._failures.report("looking at replicas failed", error, now_s, topic=partition.topic)
                if number % LOOKED_AT_IN_A_ROW == LOOKED_AT_IN_A_ROW - 1:
                    await asyncio.sleep(0)

    def _look_at_all(self, partition: Partition, now_s: float) -> None:
        for replica, progress in partition.followers.items():
            if progress.is_close:
                self._wait_or_not(partition, replica, now_s)
        self._look_at(partition, now_s)

    def _look_at(self, partition: Partition, now_s: float) -> None:
        """Ask for another ISR if the one there is does not fit."""
        key = (partition.topic_id, partition.index)
        if partition.is_asking or self._refused.get(key, now_s) > now_s:
            return
        isr = wanted_isr(self._view(partition), self._partitions.image.brokers, now_s, self._lag_max_s)
        if isr is not partition.state.isr:
            partition.ask_isr(isr)
            self._wishes[key] = _Wish(partition, partition.state, isr)
            self._news.set()

    def _view(self, partition: Partition) -> LeaderSnapshot:
        log = partition.log
        return LeaderSnapshot(
            self._broker_id,
            partition.state,
            partition.followers,
            log.log_end_offset,
            log.high_watermark,
            partition.term_start,
        )

    # Asking.

    async def _ask_from_now_on(self) -> None:
        retry_s = RETRY_FIRST_S
        while True:
            await self._news.wait()
            self._news.clear()
            asked = {key: wish for key, wish in self._wishes.items() if wish.is_due}
            self._wishes = asked.copy()
            if not asked:
                continue
            try:
                answer = await self._ask_controller(self._request(asked.values()))
                if answer.error_code:
                    raise KafkaError(ErrorCode(answer.error_code))
                self._take_all(answer, asked)
                retry_s = RETRY_FIRST_S
            except KafkaError as error:
                _log.info("the ISR is asked for again", extra={"partitions": len(asked), "reason": str(error)})
                retry_s = min(2 * retry_s, RETRY_MAX_S)
            except Exception as error:
                self._failures.report("asking for the ISR failed", error, self._monotonic())
                retry_s = RETRY_MAX_S
            if self._wishes:  # of this round, or new ones
                with suppress(TimeoutError):
                    async with asyncio.timeout(retry_s):
                        await self._news.wait()
                self._news.set()

    def _request(self, wishes: Iterable[_Wish]) -> AlterPartitionRequest:
        own_epoch = self._epoch()
        topics: dict[UUID, AlterPartitionRequest.TopicData] = {}
        for partition, state, isr in wishes:
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

    def _take_all(self, answer: AlterPartitionResponse, asked: Mapping[Key, _Wish]) -> None:
        now_s = self._monotonic()
        came: dict[tuple[str, Isr, Isr], list[Partition]] = {}
        for topic in answer.topics:
            for outcome in topic.partitions:
                key = (topic.topic_id, outcome.partition_index)
                wish = asked.get(key)
                if wish is not None and self._wishes.get(key) is wish:  # else there is a newer one meanwhile
                    told = self._take(key, wish, outcome, now_s)
                    if told:
                        came.setdefault((told, wish.state.isr, wish.isr), []).append(wish.partition)
        for (told, before, wanted), partitions in came.items():  # a broker that comes or goes changes thousands
            _log.info(told, extra=_facts(partitions, before, wanted))

    def _take(self, key: Key, wish: _Wish, outcome: AlterPartitionResponse.PartitionData, now_s: float) -> str:
        """Act on an answer; what is to be logged of it, if anything."""
        partition, state, isr = wish
        code = outcome.error_code
        if code in _RETRIED:
            return ""
        del self._wishes[key]
        if code in _REFUSED:
            self._refused[key] = now_s + REFUSED_S
            if wish.is_due:
                partition.give_up_isr()
            return f"the controller refuses an ISR: {ErrorCode(code).name}"
        if code:  # a newer state is on its way, and says what holds
            return f"the ISR is changing otherwise: {ErrorCode(code).name}"
        self.changes.shrinks += len(set(state.isr).difference(isr)) > 0
        self.changes.expands += len(set(isr).difference(state.isr)) > 0
        if wish.is_due:
            self._apply(partition, outcome)
        self._look_again(partition)  # meanwhile others may have arrived
        return "the ISR has changed"

    def _apply(self, partition: Partition, outcome: AlterPartitionResponse.PartitionData) -> None:
        """Take the new state over; the metadata bring it again, with what else belongs to it."""
        partition.change(
            replace(
                partition.state,
                isr=tuple(outcome.isr),
                leader=outcome.leader_id,
                leader_epoch=outcome.leader_epoch,
                partition_epoch=outcome.partition_epoch,
            )
        )

    def _look_again(self, partition: Partition) -> None:
        if partition.is_leader and partition.is_open:
            self._look_at(partition, self._monotonic())


def _facts(partitions: Sequence[Partition], before: Isr, asked: Isr) -> dict[str, object]:
    """What is logged of partitions whose ISRs changed alike: how many, and the names of the first."""
    names = [f"{each.topic}-{each.index}" for each in partitions[:NAMED_MAX]]
    more = [f"and {len(partitions) - NAMED_MAX} more"] if len(partitions) > NAMED_MAX else []
    return {
        "partitions": len(partitions),
        "names": " ".join(names + more),
        "before": ",".join(map(str, before)),
        "asked": ",".join(map(str, asked)),
    }
