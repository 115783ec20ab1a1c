"""Reports about this broker's logs to the controller: how far each log reaches, and in which directory it is (KIP-966).

The controller requests them before it registers this broker, and when it must choose a leader among replicas that were
not in sync. So they are built from the logs on disk and need no metadata.

A log that has lost committed records is reported with its previous high watermark, even after a restart, so that no
election mistakes a short log for a complete one. A log whose machine has lost power is reported as one from which the
power cut may have removed records (``may_be_cut_by_power``). A new log of a replica that may have had another one is
reported with its offsets, but as missing. These marks stay until the controller has registered this process and the
replica is in the ISR of a leader again: it has then caught up, or a recovery has accepted the loss of the records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from parley.broker.metadata.changes import Delta, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.replication import GetReplicaLogInfoRequest, GetReplicaLogInfoResponse
from parley.protocol.schema import ZERO_UUID
from parley.protocol.sentinels import NO_EPOCH, NO_OFFSET
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID
from parley.storage.log import Log
from parley.storage.log_manager import LogManager

PAGE_LOGS = 1000
"""The maximum number of logs in one response about requested replicas (KIP-966)."""
PAGE_OF_ALL_LOGS = 2000
"""The maximum number of logs in one response about all logs. It is larger, because each page sorts all of them."""

_Info = GetReplicaLogInfoResponse.PartitionLogInfo
_Topic = GetReplicaLogInfoResponse.TopicPartitionLogInfo


class ReplicaReports:
    """Builds the reports of one broker."""

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        partitions: HostedPartitions,
        incarnation_id: UUID,
        registered_epoch: Callable[[], int],
    ) -> None:
        """``registered_epoch`` returns the epoch under which this process is registered, or -1 before that."""
        self._broker_id = broker_id
        self._logs = logs
        self._partitions = partitions
        self._incarnation_id = incarnation_id
        self._registered_epoch = registered_epoch
        self._was_registered = False

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Remove the marks of logs whose replicas are in sync again. Subscribe this to the metadata."""
        if not self.is_registered(image):
            return
        unsettled: Iterable[Log] = self._logs.unsettled.logs
        if self._was_registered:
            changed = {(each.topic, each.partition) for each in delta.changes if isinstance(each, PartitionChanged)}
            unsettled = (log for log in unsettled if (log.topic, log.partition) in changed) if changed else ()
        self._was_registered = True
        for log in unsettled:
            if self._is_in_sync(log, image):
                self._logs.unsettled.settle(log)

    def is_registered(self, image: MetadataImage) -> bool:
        """Return True if the image contains the registration of this process, and it is not fenced. The controller has
        then seen its logs, because it requests a report before it registers a process."""
        known = image.brokers.get(self._broker_id)
        return known is not None and known.incarnation_id == self._incarnation_id and not known.fenced

    def _is_in_sync(self, log: Log, image: MetadataImage) -> bool:
        state = image.partition(log.topic, log.partition)
        if state is None or log.topic_id not in (None, image.topics[log.topic].topic_id):
            return False
        # If the store was rolled back, the replica may have been in the ISR when its new log was created.
        is_later = state.partition_epoch > self._logs.unsettled.unproven.get(log, NO_EPOCH)
        return is_later and state.leader != NO_LEADER and self._broker_id in state.isr

    def page(self, request: GetReplicaLogInfoRequest) -> GetReplicaLogInfoResponse:
        """Return a report of the requested logs, or of all logs if the request names none. If it exceeds a page, the
        response is ``truncated``, and the controller must request the rest."""
        response = GetReplicaLogInfoResponse(
            broker_epoch=self._registered_epoch(),
            truncated=False,
            topic_partition_log_info_list=[],
            incarnation_id=self._incarnation_id,
            is_any_directory_offline=len(self._logs.online()) < len(self._logs.directories),
        )
        wanted: Iterable[tuple[UUID | None, str, int]]
        if request.topic_partitions is None:
            keys = sorted(self._logs.homes)
            keys = keys[bisect_right(keys, (request.after_topic, request.after_partition)) :]
            wanted, logs_max, without_id = ((None, *key) for key in keys), PAGE_OF_ALL_LOGS, set()
        else:
            wanted, logs_max = self._named(request.topic_partitions), PAGE_LOGS
            without_id = {log.partition for log in self._logs.logs if log.topic_id is None}
        page = list(islice(wanted, logs_max + 1))
        response.truncated = len(page) > logs_max
        for topic_id, topic, index in page[:logs_max]:
            self._add(response, topic_id, (topic, index), without_id)
        return response

    def _named(
        self, requested: list[GetReplicaLogInfoRequest.TopicPartitions]
    ) -> Iterator[tuple[UUID | None, str, int]]:
        """Return the requested topic ids and partitions, each with the topic's name, or "" if this broker does not know
        the name."""
        names = {log.topic_id: log.topic for log in self._logs.logs if log.topic_id is not None}
        names.update(self._partitions.image.topic_names)
        return ((each.topic_id, names.get(each.topic_id, ""), index) for each in requested for index in each.partitions)

    def _add(
        self, response: GetReplicaLogInfoResponse, topic_id: UUID | None, key: TopicPartition, without_id: set[int]
    ) -> None:
        """Add the report of one log. Without a ``topic_id``, use the topic id of the log.

        ``without_id`` contains the partition numbers of the logs whose topic id is unknown.
        """
        info, known_id = self._info(key, topic_id, without_id)
        topics = response.topic_partition_log_info_list
        reported_id = known_id if topic_id is None else topic_id
        if not topics or (topics[-1].topic_id, topics[-1].topic_name) != (reported_id, key[0]):
            topics.append(_Topic(topic_id=reported_id, topic_name=key[0], partition_log_info=[]))
        topics[-1].partition_log_info.append(info)

    def _info(self, key: TopicPartition, topic_id: UUID | None, without_id: set[int]) -> tuple[_Info, UUID]:
        """Return the report of one log, and its topic id (zero if unknown)."""
        if not key[0] and key[1] in without_id:
            return self._without_log(key, ErrorCode.UNKNOWN_TOPIC_ID)  # it may be the requested log
        try:
            log = self._logs.get(*key)
        except KafkaError as error:
            return self._without_log(key, error.code)
        # A log without an id belongs to the topic of its name: a power failure may have destroyed the file with the id.
        if log is None or (log.topic_id is not None and topic_id not in (None, log.topic_id)):
            return self._without_log(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        hosted = self._partitions.by_topic.get(log.topic, {}).get(log.partition)
        is_hosted = hosted is not None and log.topic_id in (None, hosted.topic_id)
        latest = log.latest_epoch
        info = _Info(
            partition=log.partition,
            last_written_leader_epoch=log.stored_epoch if log.log_end_offset else NO_EPOCH,
            current_leader_epoch=max(
                NO_EPOCH if latest is None else latest,
                hosted.leader_epoch if hosted is not None and is_hosted else NO_EPOCH,
            ),
            log_end_offset=log.log_end_offset,
            error_code=self._error(log),
            directory_id=self._logs.directory_of(log).id or ZERO_UUID,
            high_watermark=self._logs.unsettled.known_high_watermark(log),
            partition_epoch=hosted.state.partition_epoch if hosted is not None and is_hosted else NO_EPOCH,
            may_be_cut_by_power=self._logs.unsettled.may_be_cut_by_power(log),
        )
        return info, log.topic_id or ZERO_UUID

    def _error(self, log: Log) -> ErrorCode:
        if self._logs.unsettled.is_unproven(log):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.CORRUPT_MESSAGE if log.damage else ErrorCode.NONE

    def _without_log(self, key: TopicPartition, code: ErrorCode) -> tuple[_Info, UUID]:
        home = self._logs.homes.get(key)
        hosted = self._partitions.by_topic.get(key[0], {}).get(key[1])
        info = _Info(
            partition=key[1],
            last_written_leader_epoch=NO_EPOCH,
            current_leader_epoch=NO_EPOCH if hosted is None else hosted.leader_epoch,
            log_end_offset=NO_OFFSET,
            error_code=code,
            directory_id=ZERO_UUID if home is None else home.id or ZERO_UUID,
        )
        return info, ZERO_UUID if hosted is None else hosted.topic_id
