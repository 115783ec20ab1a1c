"""Elections that the controller starts by itself, and the effects of a change to a topic's configuration."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from parley.broker.config import BrokerConfig, TopicConfig
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.administration import Administration
from parley.broker.controller.configs import ConfigChange
from parley.broker.controller.elections.election_rules import ElectionRules
from parley.broker.controller.elections.periodic_elections import (
    rebalance_leaders_periodically,
    reconcile_leaders_periodically,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, ConfigResource, PartitionState, ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.controller.clusters import TOPIC, DirectController, balanced, image_with

AWAY = PartitionState((1, 2), (2, 1), 2, 5, 7)
LEADERLESS = PartitionState((1, 2), (), NO_LEADER, 5, 7, elr=(2,))


def config(**given: str) -> BrokerConfig:
    properties = {name.replace("_", "."): value for name, value in given.items()}
    return BrokerConfig.from_properties({"log.dirs": "/nowhere", **properties})


def leaders(controller: DirectController) -> list[int]:
    return [state.leader for _, _, state in controller.metadata.image.partitions()]


def elrs(controller: DirectController) -> list[tuple[int, ...]]:
    return [state.elr for _, _, state in controller.metadata.image.partitions()]


async def changed(controller: DirectController) -> None:
    """Wait for the next change of the metadata."""
    done = asyncio.Event()
    controller.metadata.subscribe(lambda delta, _: done.set() if delta.changes else None)
    await done.wait()


async def test_leaderships_return_at_each_interval() -> None:
    controller = DirectController(image_with(AWAY))
    given = config(leader_imbalance_check_interval_seconds="1")
    duty = asyncio.ensure_future(rebalance_leaders_periodically(controller, lambda: given, balanced))  # type: ignore[arg-type]
    await changed(controller)
    assert leaders(controller) == [1]
    duty.cancel()


async def test_leaders_stay_where_they_are_if_that_is_configured() -> None:
    controller = DirectController(image_with(AWAY))
    settings = iter([config(leader_imbalance_check_interval_seconds="1"), config(auto_leader_rebalance_enable="false")])
    with pytest.raises(RuntimeError):  # the configuration is read a third time: nothing was done the second time
        await rebalance_leaders_periodically(controller, lambda: next(settings), balanced)  # type: ignore[arg-type]
    assert leaders(controller) == [2]


async def test_a_new_controller_looks_for_partitions_without_a_leader_at_once() -> None:
    controller = DirectController(image_with(LEADERLESS, AWAY, fenced=[2]))
    duty = asyncio.ensure_future(reconcile_leaders_periodically(controller, config, balanced))  # type: ignore[arg-type]
    await changed(controller)
    assert leaders(controller) == [NO_LEADER, 1]
    duty.cancel()


async def test_a_duty_ends_with_the_term() -> None:
    controller = DirectController(image_with(LEADERLESS))
    controller.is_active = False
    with pytest.raises(KafkaError) as ended:
        await reconcile_leaders_periodically(controller, config, balanced)  # type: ignore[arg-type]
    assert ended.value.code is ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize(
    "resource", [ConfigResource(ResourceType.TOPIC, TOPIC), ConfigResource(ResourceType.BROKER, "")]
)
async def test_a_lower_min_insync_replicas_clears_the_elr(resource: ConfigResource) -> None:
    """Until then the leader does not advance the high watermark."""
    controller = DirectController(image_with(PartitionState((1, 2), (1,), 1, 5, 7, elr=(2,))))
    dynamic = DynamicConfig(1, config(min_insync_replicas="2"))
    controller.metadata.subscribe(dynamic.apply)

    def rules(image: MetadataImage, topic: str) -> ElectionRules:
        return ElectionRules(TopicConfig(dynamic(), image.config(ResourceType.TOPIC, topic)).min_insync_replicas)

    async def opened() -> None:
        """Nothing to wait for."""

    administration = Administration(1, controller, controller.metadata, dynamic, Random(1), opened, rules)  # type: ignore[arg-type]
    lowered = ConfigChange(resource, replacement={"min.insync.replicas": "1"})
    await administration.alter_configs([lowered], validate_only=True)
    assert elrs(controller) == [(2,)]
    (outcome,) = await administration.alter_configs([lowered])
    assert outcome.error is None
    assert elrs(controller) == [()]
