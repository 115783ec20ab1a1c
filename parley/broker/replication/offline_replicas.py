"""Reports to the controller the replicas whose disk has failed, so that other replicas lead and the ISRs shrink.

A failed replica is reported while the metadata shows that it leads, or that it is in the ISR or the ELR. While the
partition has a leader, a replica in the last known ELR is reported, too, because a later recovery would wait for it. If
the metadata adds the replica again later, it is reported again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from parley.broker.metadata.changes import Delta
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.cluster_metadata import ReportOfflineReplicasRequest, ReportOfflineReplicasResponse
from parley.protocol.uuids import UUID

_log = logging.getLogger(__name__)

RETRY_S = 0.1


class OfflineReplicas:
    """Finds the failed replicas of this broker and reports them to the controller, while ``run`` runs."""

    def __init__(
        self,
        broker_id: int,
        partitions: HostedPartitions,
        ask_controller: Callable[[Any], Awaitable[Any]],
        *,
        epoch: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._ask_controller = ask_controller
        self._epoch = epoch
        self._wakeup = asyncio.Event()
        self._any_failed = False

    def report(self) -> None:
        """Schedule a report to the controller about the replicas that have just failed."""
        self._any_failed = True
        self._wakeup.set()

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Check again after a change to the metadata. Subscribe this after ``HostedPartitions.apply``."""
        if self._any_failed:
            self._wakeup.set()

    async def run(self) -> None:
        """Report failed replicas to the controller, until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            failed = [partition for partition in self._partitions if self._must_be_reported(partition)]
            if failed:
                await self._send(failed)
                await asyncio.sleep(RETRY_S)  # meanwhile the metadata or the controller should change
                self._wakeup.set()

    def _must_be_reported(self, partition: Partition) -> bool:
        state, broker_id = partition.state, self._broker_id
        is_eligible = state.leader == broker_id or broker_id in state.isr or broker_id in state.elr
        is_awaited_later = state.leader != NO_LEADER and broker_id in state.last_known_elr
        return partition.has_failed and (is_eligible or is_awaited_later)

    async def _send(self, partitions: list[Partition]) -> None:
        topics: dict[UUID, list[int]] = defaultdict(list)
        for partition in partitions:
            topics[partition.topic_id].append(partition.index)
        request = ReportOfflineReplicasRequest(
            broker_id=self._broker_id,
            broker_epoch=self._epoch(),
            topics=[
                ReportOfflineReplicasRequest.Topic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in topics.items()
            ],
        )
        try:
            response: ReportOfflineReplicasResponse = await self._ask_controller(request)
            if response.error_code:
                raise KafkaError(ErrorCode(response.error_code))
        except KafkaError as error:
            _log.info("retrying to report offline replicas", extra={"reason": str(error)})
        else:
            _log.warning("replicas on failed disks are out of service", extra={"partitions": len(partitions)})
