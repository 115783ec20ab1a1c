"""DeleteRecords: delete all records of a partition below an offset (KIP-107)."""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter

from parley.broker.api.requested_names import once
from parley.broker.metadata.topic_names import INTERNAL_TOPICS
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import LOW_WATERMARK, Partition
from parley.broker.runtime.purgatory import Delayed, Purgatory
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import DeleteRecordsRequest, DeleteRecordsResponse

TO_HIGH_WATERMARK = -1
"""The offset that stands for the high watermark: all records that consumers can read are deleted."""

NO_LOW_WATERMARK = -1


_Result = DeleteRecordsResponse.DeleteRecordsPartitionResult


class DeleteRecordsApi:
    """Handler of DeleteRecords."""

    def __init__(self, partitions: HostedPartitions, purgatory: Purgatory) -> None:
        """``purgatory`` is ``Purgatories.produce``."""
        self._partitions = partitions
        self._purgatory = purgatory

    def routes(self) -> dict[int, Handler]:
        return {DeleteRecordsRequest.API_KEY: self.delete_records}

    def delete_records(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse | Delayed[DeleteRecordsResponse]:
        """Raise the log start offset of each partition to the requested offset. Each partition succeeds or fails
        independently.

        Responds when every live replica has done the same. After the request's timeout, partitions with replicas that
        have not done so get REQUEST_TIMED_OUT.

        Segments that lie completely below the new log start offset are deleted later.
        """
        named = once(((t.name, t.partitions) for t in request.topics), attrgetter("partition_index"))
        waiting: dict[Partition, tuple[int, _Result]] = {}
        response = DeleteRecordsResponse(
            topics=[
                DeleteRecordsResponse.DeleteRecordsTopicResult(
                    name=topic,
                    partitions=[self._deleted(topic, requested, waiting) for requested in partitions.values()],
                )
                for topic, partitions in named.items()
            ]
        )
        delayed = DelayedDeletion(response, waiting, self._partitions)
        if delayed.is_complete():
            return response
        keys = [(partition, LOW_WATERMARK) for partition in waiting]
        self._purgatory.watch(delayed, keys, max(0, request.timeout_ms) / 1000)
        return delayed

    def _deleted(
        self,
        topic: str,
        requested: DeleteRecordsRequest.DeleteRecordsPartition,
        waiting: dict[Partition, tuple[int, _Result]],
    ) -> _Result:
        result = _Result(partition_index=requested.partition_index, low_watermark=NO_LOW_WATERMARK)
        try:
            partition = self._partitions.find(topic, requested.partition_index)
            waiting[partition] = (self._advance(partition, requested.offset), result)
        except KafkaError as error:
            result.error_code = error.code
        return result

    def _advance(self, partition: Partition, offset: int) -> int:
        if partition.topic in INTERNAL_TOPICS:  # regardless of cleanup.policy: the next coordinator needs the records
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        partition.check_leader()
        log = partition.log
        if "delete" not in log.config.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        if offset == TO_HIGH_WATERMARK:
            offset = log.high_watermark
        if not 0 <= offset <= log.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > log.log_start_offset:
            partition.delete_before(offset)
        return offset


class DelayedDeletion(Delayed[DeleteRecordsResponse]):
    """A response that is sent when the live replicas of each partition have reached the requested log start offset, or
    after the timeout. The remaining partitions then get REQUEST_TIMED_OUT."""

    def __init__(
        self,
        response: DeleteRecordsResponse,
        waiting: dict[Partition, tuple[int, _Result]],
        partitions: HostedPartitions,
    ) -> None:
        super().__init__()
        self._response = response
        self._waiting = waiting
        self._partitions = partitions

    def is_complete(self) -> bool:
        """Check every partition. Returns True if no partition is left to wait for."""
        for partition in tuple(self._waiting):
            self._look_at(partition)
        return not self._waiting

    def on_change(self, key: Hashable, amount: int) -> bool:
        assert isinstance(key, tuple)
        if key[0] in self._waiting:
            self._look_at(key[0])
            if not self._waiting:
                self.complete(self._response)
        return True

    def _look_at(self, partition: Partition) -> None:
        offset, result = self._waiting[partition]
        try:
            partition.check_leader()
            low_watermark = partition.low_watermark(self._partitions.image.brokers)
            if low_watermark < offset:
                return
            result.low_watermark = low_watermark
        except KafkaError as error:
            result.error_code = error.code
        del self._waiting[partition]

    def expired(self) -> None:
        for _, result in self._waiting.values():
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
        self.complete(self._response)
