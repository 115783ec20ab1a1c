"""AlterPartition: a leader asks the controller to change the ISR of its partitions.

Only the controller handles this request. Any other broker returns NOT_CONTROLLER, and the leader looks up the
controller. The controller decides on queued requests one after another and commits them together.
"""

from __future__ import annotations

from typing import Final

from parley.broker.controller.controller import Controller
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.isr_changes import IsrChange, IsrChangeOutcome, alter_partitions
from parley.broker.metadata.current import Metadata
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.replication import AlterPartitionRequest, AlterPartitionResponse
from parley.protocol.schema import ZERO_UUID
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID

TOPIC_IDS_SINCE = 2
RECOVERED = 0

_BEFORE_TOPIC_IDS = {
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INELIGIBLE_REPLICA: ErrorCode.OPERATION_NOT_ATTEMPTED,
    ErrorCode.NEW_LEADER_ELECTED: ErrorCode.FENCED_LEADER_EPOCH,
}
"""Maps each error that versions before 2 do not have to the error that they return instead (KIP-841)."""

MANY_PARTITIONS: Final = 100
"""If a request changes at least this many partitions, the controller decides on them in a thread. Each takes 20
microseconds, during which the event loop could not serve clients."""


class AlterPartitionApi:
    """Handler of AlterPartition."""

    def __init__(self, controller: Controller, metadata: Metadata, rules: RulesOf) -> None:
        self._controller = controller
        self._rules = rules
        self._metadata = metadata

    def routes(self) -> dict[int, Handler]:
        return {AlterPartitionRequest.API_KEY: self.alter_partition}

    async def alter_partition(self, context: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Change the ISRs of partitions that the sender leads. Each change succeeds or fails independently.

        For an error of the whole request, the response contains only an error code, for example NOT_CONTROLLER, or
        STALE_BROKER_EPOCH if the sender is not registered under the epoch in the request.
        """
        version = context.api_version
        ids = [self._topic_id(topic, version) for topic in request.topics]
        wanted = [
            _isr_change(topic_id, partition, version)
            for topic_id, topic in zip(ids, request.topics, strict=True)
            for partition in topic.partitions
        ]
        try:
            outcomes = await self._controller.submit(
                lambda image: alter_partitions(image, request.broker_id, request.broker_epoch, wanted, self._rules),
                is_slow=len(wanted) >= MANY_PARTITIONS,
            )
        except KafkaError as error:
            return AlterPartitionResponse(error_code=error.code, topics=[])
        results = iter(outcomes)
        return AlterPartitionResponse(
            topics=[
                AlterPartitionResponse.TopicData(
                    topic_name=topic.topic_name,
                    topic_id=topic.topic_id,
                    partitions=[_partition_data(next(results), version) for _ in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _topic_id(self, topic: AlterPartitionRequest.TopicData, version: int) -> UUID:
        if version >= TOPIC_IDS_SINCE:
            return topic.topic_id
        known = self._metadata.image.topics.get(topic.topic_name)
        return ZERO_UUID if known is None else known.topic_id


def _isr_change(topic_id: UUID, partition: AlterPartitionRequest.PartitionData, version: int) -> IsrChange:
    if version >= 3:
        isr = tuple((state.broker_id, state.broker_epoch) for state in partition.new_isr_with_epochs)
    else:
        isr = tuple((broker_id, NO_EPOCH) for broker_id in partition.new_isr)
    if partition.leader_recovery_state != RECOVERED:
        isr = ()  # no partition is ever in recovery in Parley: the empty ISR is rejected as invalid
    return IsrChange(topic_id, partition.partition_index, partition.leader_epoch, partition.partition_epoch, isr)


def _partition_data(outcome: IsrChangeOutcome, version: int) -> AlterPartitionResponse.PartitionData:
    state, error = outcome.state, outcome.error
    if version < TOPIC_IDS_SINCE:
        error = _BEFORE_TOPIC_IDS.get(error, error)
    if error is not ErrorCode.NONE or state is None:
        return AlterPartitionResponse.PartitionData(
            partition_index=outcome.change.partition,
            error_code=error,
            leader_id=0,
            leader_epoch=0,
            isr=[],
            partition_epoch=0,
        )
    return AlterPartitionResponse.PartitionData(
        partition_index=outcome.change.partition,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        partition_epoch=state.partition_epoch,
    )
