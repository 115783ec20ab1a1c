"""The log directories that a broker reports for its replicas (KIP-858)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.broker.api.assign_replicas import AssignReplicasApi
from parley.broker.controller.directory_assignment import DirectoryAssignment, assign_directories
from parley.broker.metadata.changes import BrokerRegistered
from parley.broker.metadata.types import UNASSIGNED_DIRECTORY, PartitionState
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.replication import AssignReplicasToDirsRequest
from parley.protocol.uuids import UUID
from tests.broker.api.bench import context
from tests.broker.controller.clusters import TOPIC, DirectController, epoch_of, image_with

ONE, TWO = UUID(int=101), UUID(int=102)
Asked = AssignReplicasToDirsRequest


@pytest.mark.parametrize("before", [UNASSIGNED_DIRECTORY, ONE, UUID(int=103)])
def test_an_assignment_changes_the_directory_of_this_replica_only(before: UUID) -> None:
    directories = (UNASSIGNED_DIRECTORY, before)
    image = image_with(PartitionState((1, 2), (1, 2), 1, leader_epoch=3, partition_epoch=7, directories=directories))
    topic_id = image.topics[TOPIC].topic_id
    decision = assign_directories(image, 2, epoch_of(2), [DirectoryAssignment(topic_id, 0, TWO)])
    assert decision.result == [ErrorCode.NONE]
    state = image.with_changes(decision.changes).partition(TOPIC, 0)
    assert state is not None
    assert (state.directory(1), state.directory(2)) == (UNASSIGNED_DIRECTORY, TWO)
    assert (state.leader_epoch, state.partition_epoch) == (3, 8)


def test_a_known_assignment_changes_nothing() -> None:
    image = image_with(PartitionState((1, 2), (1, 2), 1, directories=(ONE, TWO)))
    topic_id = image.topics[TOPIC].topic_id
    decision = assign_directories(image, 1, epoch_of(1), [DirectoryAssignment(topic_id, 0, ONE)])
    assert (decision.changes, decision.result) == ((), [ErrorCode.NONE])


def test_each_assignment_has_its_own_error() -> None:
    image = image_with(PartitionState((1, 2), (1, 2), 1))
    topic_id = image.topics[TOPIC].topic_id
    wanted = [
        DirectoryAssignment(UUID(int=1), 0, ONE),
        DirectoryAssignment(topic_id, 9, ONE),
        DirectoryAssignment(topic_id, 0, ONE),
    ]
    assert assign_directories(image, 1, epoch_of(1), wanted).result == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    assert assign_directories(image, 3, epoch_of(3), wanted).result[2] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError, match="is registered with epoch"):
        assign_directories(image, 1, epoch_of(1) - 1, wanted)


def test_a_directory_that_the_broker_has_not_registered_is_refused() -> None:
    image = image_with(PartitionState((1, 2), (1, 2), 1))
    topic_id = image.topics[TOPIC].topic_id
    image = image.with_changes([BrokerRegistered(replace(image.brokers[2], log_dirs=(TWO,)))])
    wanted = [DirectoryAssignment(topic_id, 0, ONE), DirectoryAssignment(topic_id, 0, TWO)]
    assert assign_directories(image, 2, epoch_of(2), wanted).result == [ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.NONE]


async def test_the_response_has_the_form_of_the_request() -> None:
    controller = DirectController(image_with(PartitionState((1, 2), (1, 2), 1), PartitionState((2,), (2,), 2)))
    topic_id = controller.metadata.image.topics[TOPIC].topic_id
    api = AssignReplicasApi(controller)  # type: ignore[arg-type]

    def directory(id: UUID, *indexes: int) -> AssignReplicasToDirsRequest.DirectoryData:
        partitions = [Asked.PartitionData(partition_index=index) for index in indexes]
        return Asked.DirectoryData(id=id, topics=[Asked.TopicData(topic_id=topic_id, partitions=partitions)])

    request = Asked(broker_id=2, broker_epoch=epoch_of(2), directories=[directory(ONE, 0, 5), directory(TWO, 1)])
    response = await api.assign_replicas_to_dirs(context(0), request)
    assert [
        (each.id, topic.topic_id, partition.partition_index, partition.error_code)
        for each in response.directories
        for topic in each.topics
        for partition in topic.partitions
    ] == [
        (ONE, topic_id, 0, ErrorCode.NONE),
        (ONE, topic_id, 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TWO, topic_id, 1, ErrorCode.NONE),
    ]
    assert [state.directory(2) for _, _, state in controller.metadata.image.partitions()] == [ONE, TWO]
    request.broker_epoch = 1
    assert (await api.assign_replicas_to_dirs(context(0), request)).error_code == ErrorCode.STALE_BROKER_EPOCH
