"""List and describe topics."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.configs import DescribeConfigsRequest
from parley.protocol.messages.elections import ListPartitionReassignmentsRequest
from parley.protocol.messages.metadata import DescribeTopicPartitionsRequest
from parley.protocol.uuids import UUID
from parley.tools.cli.cluster_client import check
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import Format, print_data
from parley.tools.cli.topics.selection import Selection

_TOPIC_RESOURCE = 2
_DEFAULT_CONFIG = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """The topics to describe."""

    pattern: str
    topic_id: str
    exclude_internal: bool
    if_exists: bool
    partitions_per_response: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The state of a partition. ``leader`` is -1 if there is none. ``elr`` and ``last_known_elr`` are None if not
    reported (KIP-966)."""

    index: int
    leader: int
    replicas: Sequence[int]
    isr: Sequence[int]
    elr: Sequence[int] | None = None
    last_known_elr: Sequence[int] | None = None
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()

    @property
    def replication_factor(self) -> int:
        """The number of replicas, or the number after the reassignment in progress."""
        return len([broker for broker in self.replicas if broker not in self.removing])


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its partitions and its non-default settings."""

    name: str
    topic_id: UUID
    partitions: Sequence[PartitionDescription]
    configs: Mapping[str, str] = field(default_factory=dict)
    min_insync_replicas: int = 1


def matching(pattern: str) -> Callable[[str], bool]:
    """Return a predicate for topic names. The pattern is a list of regular expressions, separated by commas; an empty
    pattern matches all names. Raises ``CommandError`` for an invalid expression."""
    if not pattern:
        return lambda name: True
    try:
        compiled = re.compile(pattern.strip().replace(",", "|").replace(" ", ""))
    except re.error as error:
        raise CommandError(f"'{pattern}' is not a valid regular expression: {error}.") from error
    return lambda name: compiled.fullmatch(name) is not None


async def names(client: Client, pattern: str, *, exclude_internal: bool) -> list[str]:
    """Return the names of the topics that match ``pattern`` (see ``matching``), sorted. Raises ``CommandError`` for an
    invalid pattern."""
    metadata = await client.metadata()
    fits = matching(pattern)
    return sorted(
        topic.name or ""
        for topic in metadata.topics
        if fits(topic.name or "") and not (exclude_internal and topic.is_internal)
    )


async def describe(client: Client, wanted: Wanted) -> list[TopicDescription]:
    """Describe the topics, sorted by name. Raises ``CommandError`` if none is found, unless ``wanted.if_exists``, or if
    their settings cannot be read."""
    metadata = await client.metadata()
    fits = matching("" if wanted.topic_id else wanted.pattern)
    found = [
        TopicDescription(
            topic.name or "",
            topic.topic_id,
            [
                PartitionDescription(one.partition_index, one.leader_id, one.replica_nodes, one.isr_nodes)
                for one in sorted(topic.partitions, key=lambda one: one.partition_index)
            ],
        )
        for topic in sorted(metadata.topics, key=lambda topic: topic.name or "")
        if fits(topic.name or "")
        and not (wanted.exclude_internal and topic.is_internal)
        and (not wanted.topic_id or id_text(topic.topic_id) == wanted.topic_id)
    ]
    if not found and not wanted.if_exists and (wanted.pattern or wanted.topic_id):
        which = f"with id '{wanted.topic_id}'" if wanted.topic_id else f"'{wanted.pattern}'"
        raise CommandError(f"Topic {which} does not exist. `parley topics --list` shows the existing topics.")
    if not found:
        return []
    found = await _with_eligible_leaders(client, found, wanted.partitions_per_response)
    found = await _with_reassignments(client, found)
    return await _with_configs(client, found)


async def _optional(client: Client, request: Any, *, node: int | None = None) -> Any:
    """Send the request. Returns None if the broker does not support it."""
    try:
        return await client.send(request, node=node)
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return None


async def _with_eligible_leaders(
    client: Client, topics: list[TopicDescription], per_response: int
) -> list[TopicDescription]:
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=topic.name) for topic in topics],
        response_partition_limit=per_response,
    )
    known: dict[tuple[str, int], tuple[Sequence[int], Sequence[int]]] = {}
    while True:
        answer = await _optional(client, request)
        if answer is None:
            return topics
        for topic in answer.topics:
            for one in topic.partitions:
                known[topic.name, one.partition_index] = one.eligible_leader_replicas or [], one.last_known_elr or []
        if answer.next_cursor is None:
            break
        request.cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
        )
    return _each_partition(
        topics,
        lambda topic, one: (
            replace(one, elr=known[topic, one.index][0], last_known_elr=known[topic, one.index][1])
            if (topic, one.index) in known
            else one
        ),
    )


async def _with_reassignments(client: Client, topics: list[TopicDescription]) -> list[TopicDescription]:
    request = ListPartitionReassignmentsRequest(
        topics=[
            ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
                name=topic.name, partition_indexes=[one.index for one in topic.partitions]
            )
            for topic in topics
        ]
    )
    answer = await _optional(client, request, node=await client.controller())
    if answer is None or answer.error_code:
        return topics
    moving = {
        (topic.name, one.partition_index): (one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    }
    nothing: tuple[list[int], list[int]] = [], []

    def moved(topic: str, one: PartitionDescription) -> PartitionDescription:
        adding, removing = moving.get((topic, one.index), nothing)
        return replace(one, adding=adding, removing=removing)

    return _each_partition(topics, moved)


def _each_partition(
    topics: Iterable[TopicDescription], change: Callable[[str, PartitionDescription], PartitionDescription]
) -> list[TopicDescription]:
    return [replace(topic, partitions=[change(topic.name, one) for one in topic.partitions]) for topic in topics]


async def _with_configs(client: Client, topics: list[TopicDescription]) -> list[TopicDescription]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=_TOPIC_RESOURCE, resource_name=topic.name, configuration_keys=None
            )
            for topic in topics
        ]
    )
    answer = await client.send(request)
    settings: dict[str, dict[str, str]] = {}
    least: dict[str, int] = {}
    for result in answer.results:
        check(result.error_code, result.error_message, doing=f"Topic '{result.resource_name}'")
        own = {}
        for config in result.configs:
            if config.name == "min.insync.replicas" and config.value is not None:
                least[result.resource_name] = int(config.value)
            if config.config_source != _DEFAULT_CONFIG and not config.is_default:
                own[config.name] = config.value or ""
        settings[result.resource_name] = own
    return [
        replace(topic, configs=settings.get(topic.name, {}), min_insync_replicas=least.get(topic.name, 1))
        for topic in topics
    ]


# --- Output ---


def show(topics: Iterable[TopicDescription], selection: Selection, *, output_format: Format | None) -> None:
    """Print the topics with their partitions, or the selected partitions only."""
    chosen = []
    for topic in topics:
        partitions = [one for one in topic.partitions if _is_shown(topic, one, selection)]
        if selection.with_overrides and not topic.configs:
            continue
        if selection.of_partitions and not partitions:
            continue
        chosen.append(replace(topic, partitions=partitions))
    if output_format:
        print_data([_as_data(topic) for topic in chosen], output_format)
        return
    for topic in chosen:
        if not selection.of_partitions:
            print(topic_line(topic))
        if not selection.with_overrides:
            for one in topic.partitions:
                print(partition_line(topic.name, one))


def _is_shown(topic: TopicDescription, one: PartitionDescription, selection: Selection) -> bool:
    tests = (
        (selection.under_replicated, len(one.isr) < one.replication_factor),
        (selection.unavailable, one.leader < 0),
        (selection.under_min_isr, len(one.isr) < topic.min_insync_replicas),
        (selection.at_min_isr, len(one.isr) == topic.min_insync_replicas),
    )
    return not selection.of_partitions or any(is_selected and holds for is_selected, holds in tests)


def topic_line(topic: TopicDescription) -> str:
    """Format a topic as kafka-topics does."""
    configs = ",".join(f"{name}={value}" for name, value in topic.configs.items())
    factor = topic.partitions[0].replication_factor if topic.partitions else 0
    return "\t".join(
        (
            f"Topic: {topic.name}",
            f"TopicId: {id_text(topic.topic_id)}",
            f"PartitionCount: {len(topic.partitions)}",
            f"ReplicationFactor: {factor}",
            f"Configs: {configs}",
        )
    )


def partition_line(topic: str, one: PartitionDescription) -> str:
    """Format a partition as kafka-topics does."""
    parts = [
        f"\tTopic: {topic}",
        f"Partition: {one.index}",
        f"Leader: {one.leader if one.leader >= 0 else 'none'}",
        f"Replicas: {_numbers(one.replicas)}",
        f"Isr: {_numbers(one.isr)}",
    ]
    if one.adding or one.removing:
        parts += [f"Adding Replicas: {_numbers(one.adding)}", f"Removing Replicas: {_numbers(one.removing)}"]
    parts += [
        f"Elr: {'N/A' if one.elr is None else _numbers(one.elr)}",
        f"LastKnownElr: {'N/A' if one.last_known_elr is None else _numbers(one.last_known_elr)}",
    ]
    return "\t".join(parts)


def _numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def id_text(topic_id: UUID) -> str:
    """Format a topic id as Kafka's tools do: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def _as_data(topic: TopicDescription) -> dict[str, object]:
    return {
        "topic": topic.name,
        "topicId": id_text(topic.topic_id),
        "configs": dict(topic.configs),
        "partitions": [
            {
                "partition": one.index,
                "leader": one.leader if one.leader >= 0 else None,
                "replicas": list(one.replicas),
                "isr": list(one.isr),
                **({} if one.elr is None else {"elr": list(one.elr)}),
                **({} if one.last_known_elr is None else {"lastKnownElr": list(one.last_known_elr)}),
            }
            for one in topic.partitions
        ],
    }
