"""DeleteRecords: records below an offset are gone from now on (KIP-107)."""

from __future__ import annotations

from operator import attrgetter

from broker.api.naming import once
from broker.network.dispatch import Handler, RequestContext
from broker.partitions import Partitions
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.topics import DeleteRecordsRequest, DeleteRecordsResponse

TO_HIGH_WATERMARK = -1
"""The offset that stands for: everything a client could read."""

NO_LOW_WATERMARK = -1


class RecordsApi:
    """Deletes from the front of partitions that this broker leads."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def routes(self) -> dict[int, Handler]:
        return {DeleteRecordsRequest.API_KEY: self.delete_records}

    def delete_records(self, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Move the start of each log up; space is freed segment by segment as they fall behind it."""
        named = once(((t.name, t.partitions) for t in request.topics), attrgetter("partition_index"))
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsResponse.DeleteRecordsTopicResult(
                    name=topic, partitions=[self._deleted(topic, asked) for asked in partitions.values()]
                )
                for topic, partitions in named.items()
            ]
        )

    def _deleted(
        self, topic: str, asked: DeleteRecordsRequest.DeleteRecordsPartition
    ) -> DeleteRecordsResponse.DeleteRecordsPartitionResult:
        code, low_watermark = ErrorCode.NONE, NO_LOW_WATERMARK
        try:
            low_watermark = self._advance(topic, asked.partition_index, asked.offset)
        except KafkaError as error:
            code = error.code
        return DeleteRecordsResponse.DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=low_watermark, error_code=code
        )

    def _advance(self, topic: str, index: int, offset: int) -> int:
        partition = self._partitions.find(topic, index)
        partition.check_leader()
        log = partition.log
        if "delete" not in log.config.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        if offset == TO_HIGH_WATERMARK:
            offset = log.high_watermark
        if not 0 <= offset <= log.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > log.log_start_offset:
            log.advance_log_start(offset)
        return log.log_start_offset
