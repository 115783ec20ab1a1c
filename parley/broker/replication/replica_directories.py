"""Reports to the controller which log directory each replica of this broker is in (AssignReplicasToDirs, KIP-858).

The controller compares the directories with those that the broker reports at its next registration, so it notices a
directory that was emptied or replaced. A replica in the only directory of its broker needs no assignment. The directory
to which a replica moves is reported before the move: if the new disk failed between the move and a later report, the
controller would assume that the replica is still served from the old one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any

from parley.broker.metadata.changes import Delta, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import UNASSIGNED_DIRECTORY
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.replication import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from parley.protocol.uuids import UUID
from parley.storage.log_manager import LogManager

_log = logging.getLogger(__name__)

REPLICAS_MAX = 2000
"""The maximum number of replicas in one request."""
GATHERED_S = 0.1
"""The time in seconds for which replicas are collected for one request."""
RETRY_S = 1.0

_Directory = AssignReplicasToDirsRequest.DirectoryData
_Topic = AssignReplicasToDirsRequest.TopicData
_Partition = AssignReplicasToDirsRequest.PartitionData


class ReplicaDirectories:
    """Finds and reports the directories of the hosted partitions while ``run`` runs."""

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        partitions: HostedPartitions,
        ask_controller: Callable[[Any], Awaitable[Any]],
        *,
        epoch: Callable[[], int],
    ) -> None:
        """``epoch`` returns this broker's epoch."""
        self._broker_id = broker_id
        self._logs = logs
        self._partitions = partitions
        self._ask_controller = ask_controller
        self._epoch = epoch
        self._unreported: dict[Partition, None] = {}
        self._moving: dict[Partition, UUID | None] = {}  # the directories to which replicas are moving
        self._awaited: dict[Partition, asyncio.Future[None]] = {}
        self._wakeup = asyncio.Event()

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Check the partitions that have changed (as a subscriber of ``Metadata``, after the hosted partitions).

        As a result, a replica that moves back before the metadata shows the directory reported last is reported again.
        """
        for change in delta.changes:
            if isinstance(change, PartitionChanged):
                partition = self._partitions.by_topic.get(change.topic, {}).get(change.partition)
                if partition is not None:
                    self.check(partition)

    def check(self, partition: Partition) -> None:
        """Report the partition's directory soon if the metadata names another one. Call this after the log was opened
        or moved."""
        if self._directory_to_report(partition) is not None:
            self._unreported[partition] = None
            self._wakeup.set()

    async def announce(self, partition: Partition, directory_id: UUID | None) -> None:
        """Report the directory to which a replica is about to move, and wait, without a limit, until the controller
        knows it (KIP-858).

        ``settle`` must follow, whether the replica moves or not.
        """
        self._moving[partition] = directory_id
        if self._directory_to_report(partition) is not None:
            awaited = self._awaited[partition] = asyncio.get_running_loop().create_future()
            self.check(partition)
            await awaited

    def settle(self, partition: Partition) -> None:
        """Report the directory in which a replica is, after a move that succeeded or failed."""
        self._moving.pop(partition, None)
        self._awaited.pop(partition, None)
        self.check(partition)

    async def run(self) -> None:
        """Report directories to the controller, until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            await asyncio.sleep(GATHERED_S)
            while self._unreported:
                if not await self._report(list(islice(self._unreported, REPLICAS_MAX))):
                    await asyncio.sleep(RETRY_S)

    def _directory_to_report(self, partition: Partition) -> UUID | None:
        """Return the id of the partition's directory, or None if the controller knows it or does not need it."""
        assigned = partition.state.directory(self._broker_id)
        if assigned == UNASSIGNED_DIRECTORY and len(self._logs.directories) == 1:
            return None
        hosted = self._partitions.by_topic.get(partition.topic, {}).get(partition.index)
        if hosted is not partition or not partition.is_open:
            return None
        actual = self._moving.get(partition) or self._logs.directory_of(partition.log).id
        return None if actual == assigned else actual

    async def _report(self, partitions: Iterable[Partition]) -> bool:
        """Report some partitions. Returns False if the controller is unreachable."""
        directories: defaultdict[UUID, defaultdict[UUID, list[int]]] = defaultdict(lambda: defaultdict(list))
        reported = []
        for partition in partitions:
            directory = self._directory_to_report(partition)
            if directory is None:
                self._forget(partition)
            else:
                directories[directory][partition.topic_id].append(partition.index)
                reported.append((partition, directory))
        if not reported:
            return True
        try:
            response: AssignReplicasToDirsResponse = await self._ask_controller(self._request(directories))
            if response.error_code:
                raise KafkaError(ErrorCode(response.error_code))
        except KafkaError as error:
            _log.info("retrying to report the directories of replicas", extra={"reason": str(error)})
            return False
        for partition, directory in reported:  # errors need no retry: the replica was reassigned, or the topic deleted
            if self._directory_to_report(partition) in (directory, None):  # else the replica has moved meanwhile
                self._forget(partition)
        return True

    def _forget(self, partition: Partition) -> None:
        """Record that the controller knows the partition's directory, or does not need it."""
        self._unreported.pop(partition, None)
        awaited = self._awaited.pop(partition, None)
        if awaited is not None and not awaited.done():
            awaited.set_result(None)

    def _request(self, directories: dict[UUID, defaultdict[UUID, list[int]]]) -> AssignReplicasToDirsRequest:
        return AssignReplicasToDirsRequest(
            broker_id=self._broker_id,
            broker_epoch=self._epoch(),
            directories=[
                _Directory(
                    id=directory,
                    topics=[
                        _Topic(topic_id=topic_id, partitions=[_Partition(partition_index=index) for index in indexes])
                        for topic_id, indexes in topics.items()
                    ],
                )
                for directory, topics in directories.items()
            ],
        )
