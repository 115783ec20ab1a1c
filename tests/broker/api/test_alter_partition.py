"""AlterPartition requests as decoded from the wire, in every version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.broker.api.alter_partition import AlterPartitionApi
from parley.broker.metadata.types import PartitionState
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.replication import AlterPartitionRequest, AlterPartitionResponse
from parley.protocol.uuids import UUID
from tests.broker.api.bench import context
from tests.broker.controller.clusters import TOPIC_ID, DirectController, balanced, image_with


@pytest.fixture
def controller() -> DirectController:
    return DirectController(image_with(PartitionState((1, 2, 3), (1,), 1, 5, 7)))


async def ask(
    controller: DirectController, version: int, *isr: int, partition_epoch: int = 7, index: int = 0, name: str = "t"
) -> AlterPartitionResponse.PartitionData:
    partition = AlterPartitionRequest.PartitionData(
        partition_index=index,
        leader_epoch=5,
        partition_epoch=partition_epoch,
        new_isr=list(isr) if version < 3 else [],
        new_isr_with_epochs=[AlterPartitionRequest.BrokerState(broker_id=i, broker_epoch=10 + i) for i in isr]
        if version >= 3
        else [],
    )
    topic = AlterPartitionRequest.TopicData(
        topic_name=name, topic_id=TOPIC_ID if name == "t" else UUID(int=8), partitions=[partition]
    )
    api = AlterPartitionApi(controller, controller.metadata, balanced)  # type: ignore[arg-type]
    request = AlterPartitionRequest(broker_id=1, broker_epoch=11, topics=[topic])
    answer = await api.alter_partition(context(version), request)
    assert answer.error_code == ErrorCode.NONE
    ((answered,),) = ([topic.partitions for topic in answer.topics],)
    return answered[0]


@pytest.mark.parametrize("version", range(4))
async def test_each_version_changes_the_isr(controller: DirectController, version: int) -> None:
    answer = await ask(controller, version, 1, 2)
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (ErrorCode.NONE, 1, 5)
    assert (answer.isr, answer.partition_epoch) == ([1, 2], 8)
    assert controller.metadata.image.partition("t", 0) == PartitionState((1, 2, 3), (1, 2), 1, 5, 8)


@pytest.mark.parametrize("version", range(4))
async def test_errors_are_those_the_version_knows(controller: DirectController, version: int) -> None:
    by_id = version >= 2
    unknown = await ask(controller, version, 1, name="other")
    assert unknown.error_code == (ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    registration = controller.metadata.image.brokers[3]
    controller.metadata.image = replace(
        controller.metadata.image, brokers={**controller.metadata.image.brokers, 3: replace(registration, fenced=True)}
    )
    ineligible = await ask(controller, version, 1, 3)
    assert ineligible.error_code == (ErrorCode.INELIGIBLE_REPLICA if by_id else ErrorCode.OPERATION_NOT_ATTEMPTED)
    stale = await ask(controller, version, 1, 2, partition_epoch=6)
    assert stale.error_code == ErrorCode.INVALID_UPDATE_VERSION


async def test_a_broker_that_is_not_the_controller_returns_not_controller(controller: DirectController) -> None:
    controller.is_active = False
    api = AlterPartitionApi(controller, controller.metadata, balanced)  # type: ignore[arg-type]
    answer = await api.alter_partition(context(3), AlterPartitionRequest(broker_id=1, broker_epoch=11, topics=[]))
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
