"""Elections that the controller holds by itself, and when a topic's configuration allows unclean ones."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from parley.broker.config import BrokerConfig, TopicConfig
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.administration import Administration
from parley.broker.controller.configs import ConfigChange
from parley.broker.controller.periodic_elections import rebalance_leaders_periodically, reconcile_leaders_periodically
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, ConfigResource, PartitionState, ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.controller.clusters import TOPIC, DirectController, always, image_with, never

AWAY = PartitionState((1, 2), (2, 1), 2, 5, 7)
LEADERLESS = PartitionState((1, 2), (2,), NO_LEADER, 5, 7)


def config(**given: str) -> BrokerConfig:
    properties = {name.replace("_", "."): value for name, value in given.items()}
    return BrokerConfig.from_properties({"log.dirs": "/nowhere", **properties})


def leaders(controller: DirectController) -> list[int]:
    return [state.leader for _, _, state in controller.metadata.image.partitions()]


async def changed(controller: DirectController) -> None:
    """Wait for the next change of the metadata."""
    done = asyncio.Event()
    controller.metadata.subscribe(lambda delta, _: done.set() if delta.changes else None)
    await done.wait()


async def test_leaderships_return_at_each_interval() -> None:
    controller = DirectController(image_with(AWAY))
    given = config(leader_imbalance_check_interval_seconds="1")
    duty = asyncio.ensure_future(rebalance_leaders_periodically(controller, lambda: given))  # type: ignore[arg-type]
    await changed(controller)
    assert leaders(controller) == [1]
    duty.cancel()


async def test_leaders_stay_where_they_are_if_that_is_configured() -> None:
    controller = DirectController(image_with(AWAY))
    settings = iter([config(leader_imbalance_check_interval_seconds="1"), config(auto_leader_rebalance_enable="false")])
    with pytest.raises(RuntimeError):  # the configuration is read a third time: nothing was done the second time
        await rebalance_leaders_periodically(controller, lambda: next(settings))  # type: ignore[arg-type]
    assert leaders(controller) == [2]


async def test_a_new_controller_looks_for_partitions_without_a_leader_at_once() -> None:
    controller = DirectController(image_with(LEADERLESS, AWAY, fenced=[2]))
    duty = asyncio.ensure_future(reconcile_leaders_periodically(controller, config, never))  # type: ignore[arg-type]
    await changed(controller)
    assert leaders(controller) == [NO_LEADER, 1]
    duty.cancel()


async def test_a_duty_ends_with_the_term() -> None:
    controller = DirectController(image_with(LEADERLESS))
    controller.is_active = False
    with pytest.raises(KafkaError) as ended:
        await reconcile_leaders_periodically(controller, config, always)  # type: ignore[arg-type]
    assert ended.value.code is ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize(
    "resource", [ConfigResource(ResourceType.TOPIC, TOPIC), ConfigResource(ResourceType.BROKER, "")]
)
async def test_allowing_unclean_elections_elects(resource: ConfigResource) -> None:
    controller = DirectController(image_with(LEADERLESS, fenced=[2]))
    dynamic = DynamicConfig(1, config())
    controller.metadata.subscribe(dynamic.apply)

    def unclean(image: MetadataImage, topic: str) -> bool:
        return TopicConfig(dynamic(), image.config(ResourceType.TOPIC, topic)).unclean_leader_election_enable

    async def opened() -> None:
        """Nothing to wait for."""

    administration = Administration(1, controller, controller.metadata, dynamic, Random(1), opened, unclean)  # type: ignore[arg-type]
    allowed = ConfigChange(resource, replacement={"unclean.leader.election.enable": "true"})
    await administration.alter_configs([allowed], validate_only=True)
    assert leaders(controller) == [NO_LEADER]
    (outcome,) = await administration.alter_configs([allowed])
    assert outcome.error is None
    assert leaders(controller) == [1]
