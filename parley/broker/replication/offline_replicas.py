"""Tells the controller of replicas whose disk has failed, so that others lead and nobody waits for them.

A partition is told of for as long as the metadata gives this broker a part in it that it cannot play: it leads, or is
in an ISR that has other members. So it is told of again whenever that comes back, as when this broker registers anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from parley.broker.metadata.changes import Delta
from parley.broker.metadata.image import MetadataImage
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.cluster_metadata import ReportOfflineReplicasRequest, ReportOfflineReplicasResponse

_log = logging.getLogger(__name__)

RETRY_S = 0.1


class OfflineReplicas:
    """Watches the hosted partitions while :meth:`run` runs."""

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
        self._news = asyncio.Event()
        self._any_failed = False

    def report(self) -> None:
        """Report the replicas that have just failed to the controller, soon."""
        self._any_failed = True
        self._news.set()

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """The metadata have changed (a subscriber, to come after :meth:`HostedPartitions.apply`)."""
        if self._any_failed:
            self._news.set()

    async def run(self) -> None:
        """Tell the controller, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            told = [partition for partition in self._partitions if self._must_be_told(partition)]
            if told:
                await self._tell(told)
                await asyncio.sleep(RETRY_S)  # by then the metadata have changed, or the controller is another
                self._news.set()

    def _must_be_told(self, partition: Partition) -> bool:
        state = partition.state
        return partition.has_failed and (
            state.leader == self._broker_id or (self._broker_id in state.isr and len(state.isr) > 1)
        )

    async def _tell(self, partitions: list[Partition]) -> None:
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
            answer: ReportOfflineReplicasResponse = await self._ask_controller(request)
            if answer.error_code:
                raise KafkaError(ErrorCode(answer.error_code))
        except KafkaError as error:
            _log.info("offline replicas are told of again", extra={"reason": str(error)})
        else:
            _log.warning("replicas on a failed disk are given up", extra={"partitions": len(partitions)})
