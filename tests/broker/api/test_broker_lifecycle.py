"""ControlledShutdown and UnregisterBroker requests as decoded from the wire."""

from __future__ import annotations

import pytest

from parley.broker.api.broker_lifecycle import BrokerLifecycleApi
from parley.broker.metadata.types import PartitionState
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.brokers import ControlledShutdownRequest
from parley.protocol.messages.quorum import UnregisterBrokerRequest
from tests.broker.api.bench import context
from tests.broker.controller.clusters import TOPIC, DirectController, balanced, epoch_of, image_with


@pytest.fixture
def controller() -> DirectController:
    return DirectController(image_with(PartitionState((1, 2), (1, 2), 1), PartitionState((1, 2), (1,), 1)))


async def test_a_broker_stops_and_is_forgotten(controller: DirectController) -> None:
    api = BrokerLifecycleApi(controller, balanced)  # type: ignore[arg-type]
    alive = await api.unregister_broker(context(0), UnregisterBrokerRequest(broker_id=1))
    assert alive.error_code == ErrorCode.INVALID_REQUEST
    assert "stop it" in (alive.error_message or "")
    stale = ControlledShutdownRequest(broker_id=1, broker_epoch=1)
    assert (await api.controlled_shutdown(context(3), stale)).error_code == ErrorCode.STALE_BROKER_EPOCH
    answer = await api.controlled_shutdown(context(3), ControlledShutdownRequest(broker_id=1, broker_epoch=epoch_of(1)))
    assert answer.error_code == ErrorCode.NONE
    assert [(each.topic_name, each.partition_index) for each in answer.remaining_partitions] == [(TOPIC, 1)]
    assert [state.leader for _, _, state in controller.metadata.image.partitions()] == [2, -1]
    gone = await api.unregister_broker(context(0), UnregisterBrokerRequest(broker_id=1))
    assert (gone.error_code, gone.error_message) == (ErrorCode.NONE, None)
    assert 1 not in controller.metadata.image.brokers


async def test_a_broker_that_is_not_the_controller_returns_not_controller(controller: DirectController) -> None:
    controller.is_active = False
    api = BrokerLifecycleApi(controller, balanced)  # type: ignore[arg-type]
    answer = await api.controlled_shutdown(context(3), ControlledShutdownRequest(broker_id=1))
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
    assert (
        await api.unregister_broker(context(0), UnregisterBrokerRequest(broker_id=1))
    ).error_code == ErrorCode.NOT_CONTROLLER
