"""The topics that store the workers' state: creates missing topics, and checks existing ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from parley.pipeline.connect.errors import ConnectError
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.configs import DescribeConfigsRequest
from parley.protocol.messages.topics import CreateTopicsRequest

_APPEAR_SECONDS: Final = 30.0
_PAUSE_S: Final = 0.05
_COMPACT: Final = "compact"
_TOPIC_RESOURCE: Final = 2
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The topic of a log, and how it is created. ``key`` is the worker's setting that names it."""

    name: str
    key: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    contents: str = "connector configurations"
    """The contents that would be inconsistent if the topic had several partitions instead of one."""


async def prepare(client: Client, plan: TopicPlan) -> int:
    """Create the topic if it is missing, and return its number of partitions. Raises ConnectError if that fails, or if
    an existing topic has several partitions instead of one, or another ``cleanup.policy`` than ``compact``.
    """
    try:
        count = await _partitions(client, plan)
        if count is None:
            await _create(client, plan)
            count = await _appeared(client, plan)
        else:
            await _check_policy(client, plan)
    except KafkaError as error:
        raise ConnectError(_cannot(plan, error)) from error
    if plan.partitions == 1 and count != 1:
        raise ConnectError(
            f"Topic '{plan.name}' supplied via the '{plan.key}' property is required to have a single "
            f"partition in order to guarantee consistency of {plan.contents}, but found {count} "
            "partitions."
        )
    return count


def _cannot(plan: TopicPlan, error: KafkaError) -> str:
    """Return the message for a topic that cannot be created: what is wrong, and what to do."""
    text = f"topic '{plan.name}' ({plan.key}) cannot be prepared: {str(error).rstrip('.')}. "
    if error.code is ErrorCode.INVALID_REPLICATION_FACTOR:
        settings = ", ".join(f"{kind}.storage.replication.factor=1" for kind in ("config", "offset", "status"))
        return f"{text}With one broker set {settings}."
    return f"{text}Check the brokers, or create it yourself: compacted, {plan.partitions} partition(s)."


async def _partitions(client: Client, plan: TopicPlan) -> int | None:
    described = (await client.metadata([plan.name])).topics[0]
    if described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    if described.error_code and not ErrorCode(described.error_code).retriable:
        raise KafkaError(ErrorCode(described.error_code), plan.name)
    return len(described.partitions) or None


async def _appeared(client: Client, plan: TopicPlan) -> int:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _APPEAR_SECONDS
    while True:
        count = await _partitions(client, plan)
        if count is not None:
            return count
        if loop.time() > give_up:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it was created, but does not appear in the metadata"
            )
        await asyncio.sleep(_PAUSE_S)


async def _create(client: Client, plan: TopicPlan) -> None:
    configs = {"cleanup.policy": _COMPACT, **plan.configs}
    topic = CreateTopicsRequest.CreatableTopic(
        name=plan.name,
        num_partitions=plan.partitions,
        replication_factor=plan.replication_factor,
        assignments=[],
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic])
    result = (await client.send(request, node=await client.controller())).topics[0]
    if result.error_code and result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
        raise KafkaError(ErrorCode(result.error_code), result.error_message or plan.name)


async def _check_policy(client: Client, plan: TopicPlan) -> None:
    """Raise ConnectError unless the topic is only compacted: deleting old records would lose the workers' state."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=plan.name, configuration_keys=["cleanup.policy"]
    )
    answer = await client.send(DescribeConfigsRequest(resources=[resource]))
    result = answer.results[0]
    if result.error_code:
        _log.warning("the cleanup.policy of topic '%s' cannot be read", plan.name)
        return
    policy = next((one.value for one in result.configs if one.name == "cleanup.policy"), None)
    if policy is not None and policy.replace(" ", "") != _COMPACT:
        raise ConnectError(
            f"Topic '{plan.name}' supplied via the '{plan.key}' property is required to have "
            f"'cleanup.policy=compact' to guarantee consistency and durability of what Connect keeps in it, but "
            f"found the topic currently has 'cleanup.policy={policy}'. Continuing would likely "
            "result in eventually losing it."
        )
