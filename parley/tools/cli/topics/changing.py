"""Create topics, add partitions, delete topics: requests to the controller."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.schema import ZERO_UUID
from parley.tools.cli.cluster_client import TIMEOUT_MS, check, until_ready
from parley.tools.cli.configs import Entity, warnings_about
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.topics.describing import matching


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 partitions or -1 replicas mean the broker's default."""

    name: str
    partitions: int
    replication_factor: int
    assignment: Sequence[Sequence[int]] | None
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Growth:
    """The new number of partitions of a topic, and the replicas of all its partitions (None: the broker chooses those
    of the new ones)."""

    partitions: int
    assignment: Sequence[Sequence[int]] | None


async def create(client: Client, topic: NewTopic, *, if_not_exists: bool, verbose: bool = True) -> None:
    """Create the topic. With ``if_not_exists``, do nothing if it exists. With ``verbose``, print that it was created.

    Raises ``CommandError`` if the controller rejects the request.
    """
    if verbose and ("." in topic.name or "_" in topic.name):
        print(
            "WARNING: Metric names do not distinguish '.' from '_' in topic names. Use only one of them in all names.",
            file=sys.stderr,
        )
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=topic.name,
                num_partitions=-1 if topic.assignment else topic.partitions,
                replication_factor=-1 if topic.assignment else topic.replication_factor,
                assignments=[
                    CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                    for index, brokers in enumerate(topic.assignment or ())
                ],
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.configs.items()
                ],
            )
        ],
        timeout_ms=TIMEOUT_MS,
    )

    async def ask() -> Any:
        return await client.send(request, node=await client.controller())

    answer = await until_ready(ask, lambda answer: answer.topics[0].error_code, TIMEOUT_MS)
    result = answer.topics[0]
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
        return
    check(result.error_code, result.error_message)
    if verbose:
        print(f"Created topic {topic.name}.")
        for warning in await warnings_about(client, Entity("topic", topic.name), list(topic.configs)):
            print(f"WARNING: {warning}", file=sys.stderr)


async def alter(client: Client, pattern: str, to: Growth, *, if_exists: bool) -> None:
    """Add partitions to the topics whose names match ``pattern``, a regular expression. Raises ``CommandError`` if the
    controller rejects the request, or (unless ``if_exists``) if no topic matches."""
    names = await _existing(client, pattern, if_exists=if_exists)
    metadata = await client.metadata(names)
    counts = {topic.name: len(topic.partitions) for topic in metadata.topics}
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(
                name=name, count=to.partitions, assignments=_added(to.assignment, counts.get(name, 0))
            )
            for name in names
        ],
        timeout_ms=TIMEOUT_MS,
        validate_only=False,
    )
    if names:
        answer = await client.send(request, node=await client.controller())
        for result in answer.results:
            check(result.error_code, result.error_message)


def _added(
    assignment: Sequence[Sequence[int]] | None, existing: int
) -> list[CreatePartitionsRequest.CreatePartitionsAssignment] | None:
    """Return the replicas of the partitions to add: those in the assignment after the existing ones. Returns None, for
    the broker's choice, without an assignment."""
    if assignment is None:
        return None
    return [
        CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(brokers))
        for brokers in assignment[existing:]
    ]


async def delete(client: Client, pattern: str, *, if_exists: bool) -> None:
    """Delete the topics whose names match ``pattern``, a regular expression. Raises ``CommandError`` if the controller
    rejects the request, or (unless ``if_exists``) if no topic matches."""
    names = await _existing(client, pattern, if_exists=if_exists)
    if not names:
        return
    version = await client.version_for(DeleteTopicsRequest)
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in names]
        if version >= 6
        else [],
        topic_names=[] if version >= 6 else names,
        timeout_ms=TIMEOUT_MS,
    )
    answer = await client.send(request, node=await client.controller(), version=version)
    for result in answer.responses:
        check(result.error_code, result.error_message, doing=f"Topic '{result.name}' was not deleted")


async def _existing(client: Client, pattern: str, *, if_exists: bool) -> list[str]:
    metadata = await client.metadata()
    names = sorted(topic.name or "" for topic in metadata.topics)
    found = [name for name in names if matching(pattern)(name)]
    if not found and not if_exists:
        raise CommandError(f"Topic '{pattern}' does not exist. `parley topics --list` shows the existing topics.")
    return found
