"""Take one sample of a cluster: leaders, end offsets, sizes, and the lag of groups, with requests that any Kafka broker
serves.

If a broker does not respond, or the user lacks a right, the figures concerned are unknown (None), and the command
continues.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.log_dirs import DescribeLogDirsRequest
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster import describe
from parley.tools.cli.cluster_client import led_by
from parley.tools.cli.groups.describing import committed_offsets
from parley.tools.cli.groups.listing import CONSUMER_TYPES, list_groups
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.topic_offsets import list_offsets_of

GROUPS_MAX: Final = 200
"""The maximum number of groups whose offsets are requested per sample, with one request each. Groups with members come
first."""
_GROUP_MS: Final = 5000


@dataclass(frozen=True, slots=True)
class BrokerSample:
    """A broker, with the bytes of its replicas. The address of a broker that is down may be unknown (empty)."""

    id: int
    address: str
    is_controller: bool
    leaders: int
    replicas: int
    size: int | None
    is_running: bool = True


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """A partition. ``end`` is None if its leader did not respond."""

    leader: int
    is_under_replicated: bool
    end: int | None
    size: int | None


@dataclass(frozen=True, slots=True)
class GroupSample:
    """A group. ``lag`` is None if its offsets are unknown."""

    name: str
    state: str
    lag: int | None
    committed: int
    """The sum of its committed offsets."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The results of one sample. ``at`` is in seconds of a monotonic clock.

    ``under_replicated`` and ``without_leader`` count all partitions, including those of internal topics.
    """

    at: float
    brokers: tuple[BrokerSample, ...]
    partitions: Mapping[TopicPartition, PartitionSample]
    groups: tuple[GroupSample, ...]
    groups_left_out: int
    under_replicated: int = 0
    without_leader: int = 0


async def take(client: Client, *, internal: bool) -> Sample:
    """Take a sample of the cluster. Raises ``KafkaError`` if no broker responds."""
    metadata = await client.metadata()
    at = time.monotonic()
    topics = [topic for topic in metadata.topics if not topic.error_code]
    ends = await _ends(client, led_by(topics))
    sizes = {broker.node_id: await _sizes(client, broker.node_id) for broker in metadata.brokers}
    partitions = {}
    for topic in topics:
        for one in topic.partitions:
            place = (topic.name or "", one.partition_index)
            size = (sizes.get(one.leader_id) or {}).get(place)
            is_short = len(one.isr_nodes) < len(one.replica_nodes)
            partitions[place] = PartitionSample(one.leader_id, is_short, ends.get(place), size)
    groups, left_out = await _groups(client, ends)
    hidden = set() if internal else {topic.name or "" for topic in topics if topic.is_internal}
    shown = {place: one for place, one in partitions.items() if place[0] not in hidden}
    return Sample(
        at,
        tuple(_brokers(metadata, await _down(client), topics, sizes)),
        shown,
        tuple(groups),
        left_out,
        sum(one.is_under_replicated for one in partitions.values()),
        sum(one.leader < 0 for one in partitions.values()),
    )


async def _down(client: Client) -> dict[int, str]:
    """Return the addresses of the registered brokers that are not running; empty if the brokers do not list them."""
    try:
        found = await describe(client, fenced=True)
    except (CommandError, KafkaError):
        return {}
    return {one.broker_id: f"{one.host}:{one.port}" for one in found.brokers if one.is_fenced}


def _brokers(
    metadata: Any,
    down: Mapping[int, str],
    topics: Sequence[Any],
    sizes: Mapping[int, Mapping[TopicPartition, int] | None],
) -> Iterator[BrokerSample]:
    """Yield the running brokers, and those that are registered or hold replicas and are not running."""
    leads, hosts = Counter[int](), Counter[int]()
    for topic in topics:
        for one in topic.partitions:
            leads[one.leader_id] += 1
            hosts.update(one.replica_nodes)
    running = {broker.node_id: f"{broker.host}:{broker.port}" for broker in metadata.brokers}
    for node in sorted(running.keys() | down.keys() | hosts.keys()):
        held = sizes.get(node)
        yield BrokerSample(
            node,
            running.get(node) or down.get(node, ""),
            node == metadata.controller_id,
            leads[node],
            hosts[node],
            None if held is None else sum(held.values()),
            node in running and node not in down,
        )


async def _ends(client: Client, led: Mapping[int, list[TopicPartition]]) -> dict[TopicPartition, int]:
    ends = {}
    for node, places in led.items():
        try:
            found = await list_offsets_of(client, {node: places})
        except KafkaError:
            continue
        ends.update({place: one.offset for place, one in found.items() if one.error is ErrorCode.NONE})
    return ends


async def _sizes(client: Client, node: int) -> dict[TopicPartition, int] | None:
    """Return the sizes of the replicas on a broker, or None if the broker does not respond or rejects the request."""
    try:
        answer = await client.send(DescribeLogDirsRequest(topics=None), node=node)
    except KafkaError:
        return None
    if answer.error_code or any(
        directory.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED for directory in answer.results
    ):
        return None
    return {
        (topic.name, one.partition_index): one.partition_size
        for directory in answer.results
        for topic in directory.topics
        for one in topic.partitions
        if not one.is_future_key
    }


async def _groups(client: Client, ends: Mapping[TopicPartition, int]) -> tuple[list[GroupSample], int]:
    """Return the consumer groups with their lag, and the number of groups that were omitted."""
    try:
        listed = await list_groups(client, types=CONSUMER_TYPES)
    except (CommandError, KafkaError):
        return [], 0
    listed.sort(key=lambda group: (group.state in ("Empty", "Dead"), group.name))
    found = []
    for group in listed[:GROUPS_MAX]:
        try:
            committed = await committed_offsets(client, group.name, timeout_ms=_GROUP_MS)
        except (CommandError, KafkaError):
            found.append(GroupSample(group.name, group.state, None, 0))
            continue
        # An offset beyond the end, as after an unclean election, counts as no lag.
        lag = sum(max(0, ends[place] - one.offset) for place, one in committed.items() if place in ends)
        found.append(GroupSample(group.name, group.state, lag, sum(one.offset for one in committed.values())))
    return found, len(listed) - len(found)
