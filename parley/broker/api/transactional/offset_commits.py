"""TxnOffsetCommit: offsets that a group commits as part of a producer's transaction (KIP-98, KIP-447).

The group's offsets partition is part of the transaction like any other partition. The client has added it
(AddOffsetsToTxn) or, from version 5 on, the broker adds it. It is verified like the batches of Produce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from parley.broker.api.requested_names import once
from parley.broker.api.transactional.verifications import Verification
from parley.broker.api.transactional.verifying import Verifying, offset_commit_support
from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import ProducerIdentity
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.offset_decisions import Committer
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.topic_names import OFFSETS_TOPIC
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from parley.protocol.sentinels import NO_SEQUENCE
from parley.protocol.topic_partition import TopicPartition

LOAD_MAX_S = 10.0
"""The maximum time, in seconds, that a commit waits for its group to be loaded."""
LOADING_SINCE = 2
"""The first version of TxnOffsetCommit whose clients retry after COORDINATOR_LOAD_IN_PROGRESS. Older clients get
COORDINATOR_NOT_AVAILABLE."""

_COORDINATOR_ERRORS = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""Maps errors of the offsets partition and of its verification to the errors that clients get instead, as in Kafka."""

_Committed = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition


class TransactionalOffsetsApi:
    """Handler of TxnOffsetCommit for the groups that this broker coordinates."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        partitions: HostedPartitions,
        verifying: Verifying,
        metadata: Metadata,
        config: Callable[[], BrokerConfig],
        now_ms: Callable[[], int],
    ) -> None:
        self._coordinator = coordinator
        self._partitions = partitions
        self._verifying = verifying
        self._metadata = metadata
        self._config = config
        self._now_ms = now_ms

    def routes(self) -> dict[int, Handler]:
        return {TxnOffsetCommitRequest.API_KEY: self.commit}

    async def commit(self, context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        """Commit offsets. Invalid partitions fail individually; the other partitions succeed or fail together.

        As in Kafka, an error of the producer or the group takes precedence over metadata that is too large.
        """
        named = once(((topic.name, topic.partitions) for topic in request.topics), lambda each: each.partition_index)
        requested = {(name, index): each for name, partitions in named.items() for index, each in partitions.items()}
        codes = {place: self._refusal(place, each) for place, each in requested.items()}
        accepted = {place: self._committed(each) for place, each in requested.items() if codes[place] is ErrorCode.NONE}
        known = [place for place, code in codes.items() if code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        if known:
            try:
                await self._commit(context.api_version, request, accepted)
            except KafkaError as error:
                code = _COORDINATOR_ERRORS.get(error.code, error.code)
                if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.api_version < LOADING_SINCE:
                    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                codes.update(dict.fromkeys(known, code))
        return _response(named, codes)

    def _refusal(self, place: TopicPartition, requested: _Committed) -> ErrorCode:
        if self._metadata.image.partition(*place) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len(requested.committed_metadata or "") > self._config().offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _committed(self, requested: _Committed) -> CommittedOffset:
        return CommittedOffset(
            offset=requested.committed_offset,
            leader_epoch=requested.committed_leader_epoch,
            metadata=requested.committed_metadata or "",
            commit_timestamp_ms=self._now_ms(),
        )

    async def _commit(
        self, version: int, request: TxnOffsetCommitRequest, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Verify the group's offsets partition, then write the offsets to it. Raises KafkaError if the group, the
        producer or the verification does not allow the commit, or if it cannot be stored."""
        coordinator = self._coordinator
        await coordinator.runtime.until_loaded(LOAD_MAX_S, request.group_id)
        coordinator.check_owned(request.group_id)
        partition = self._partitions.find(OFFSETS_TOPIC, coordinator.runtime.shard_of(request.group_id))
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        verification = await self._verify(version, request.transactional_id, partition, producer)
        committer = Committer(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
        check = partial(self._check, partition, producer, verification)
        await coordinator.commit_transactional(committer, producer, offsets, check)

    async def _verify(
        self, version: int, transactional_id: str, partition: Partition, producer: ProducerIdentity
    ) -> Verification | None:
        support = offset_commit_support(version)
        if not (support.adds or self._verifying.is_required):
            return None
        outcomes = await self._verifying.verify(
            transactional_id, producer.producer_id, producer.producer_epoch, {partition: NO_SEQUENCE}, support
        )
        outcome = outcomes[partition]
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    def _check(self, partition: Partition, producer: ProducerIdentity, verification: Verification | None) -> None:
        """Check the commit immediately before it is written. Raises the errors of ``Verifications.check``."""
        self._verifying.verifications.check(
            partition,
            producer.producer_id,
            producer.producer_epoch,
            NO_SEQUENCE,
            verification,
            is_required=self._verifying.is_required,
        )


def _response(
    named: Mapping[str, Mapping[int, _Committed]], codes: Mapping[TopicPartition, ErrorCode]
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=index, error_code=codes[name, index]
                    )
                    for index in partitions
                ],
            )
            for name, partitions in named.items()
        ]
    )
