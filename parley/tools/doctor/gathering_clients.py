"""Sample the groups twice, and find open transactions. Brokers that do not respond are skipped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from parley.protocol.client import Client
from parley.protocol.messages.groups import ListGroupsRequest
from parley.tools.cli.cluster_client import check
from parley.tools.cli.groups.describing import describe_one
from parley.tools.cli.groups.listing import CONSUMER_TYPES
from parley.tools.cli.transactions import hanging
from parley.tools.doctor.facts import Cluster, Group, GroupSample, OpenTransaction

GROUPS_MAX: Final = 500
"""The maximum number of groups that are described. Groups with members come first: an abandoned group harms
no reader."""
_TIMEOUT_MS: Final = 5_000
_TRANSACTION_MAX_MS: Final = 900_000
"""Kafka's default of ``transaction.max.timeout.ms``."""


class Groups:
    """The consumer groups of a cluster, sampled twice."""

    def __init__(self, client: Client, cluster: Cluster) -> None:
        self._client = client
        self._cluster = cluster
        self.listed = 0
        """The number of consumer groups that the brokers list."""

    async def first(self) -> dict[str, GroupSample]:
        """Return a sample of each group that has a lag or is in a state other than Stable and Empty. Describes at most
        ``GROUPS_MAX`` groups. Raises ``CommandError`` or KafkaError if a group cannot be described."""
        names = await self._names()
        self.listed = len(names)
        found = {}
        for name in names[:GROUPS_MAX]:
            sample = await self._sample(name)
            if sample is not None and (any(sample.lags.values()) or sample.state not in ("Stable", "Empty")):
                found[name] = sample
        return found

    async def last(self, first: Mapping[str, GroupSample]) -> list[Group]:
        """Sample the groups of the first sample again. Returns both samples. Raises ``CommandError`` or KafkaError if a
        group cannot be described."""
        return [Group(name, sample, await self._sample(name)) for name, sample in first.items()]

    async def _names(self) -> list[str]:
        """Return the names of all consumer groups, empty groups last. Raises ``CommandError`` or KafkaError if a broker
        cannot list its groups."""
        found = []
        for broker in self._cluster.running:
            if not broker.responds:
                continue
            version = await self._client.version_for(ListGroupsRequest, node=broker.id)
            types = [name.lower() for name in CONSUMER_TYPES] if version >= 5 else []
            request = ListGroupsRequest(states_filter=[], types_filter=types)
            answer = await self._client.send(request, node=broker.id)
            check(answer.error_code, doing=f"Broker {broker.id} did not list its groups")
            found += [
                (each.group_state == "Empty", each.group_id)
                for each in answer.groups
                if each.protocol_type in ("consumer", "")
            ]
        return [name for _, name in sorted(found)]

    async def _sample(self, name: str) -> GroupSample | None:
        group = await describe_one(self._client, name, timeout_ms=_TIMEOUT_MS)
        if group.error:
            return None
        committed = {where: each.offset for where, each in group.committed.items()}
        lags = {
            where: max(0, group.end_offsets[where] - offset)
            for where, offset in committed.items()
            if where in group.end_offsets
        }
        return GroupSample(group.state, len(group.members), committed, lags)


async def hanging_transactions(client: Client, cluster: Cluster) -> list[OpenTransaction]:
    """Return the transactions that no coordinator will end, in partitions led by brokers that respond.

    Raises ``CommandError`` or KafkaError if they cannot be queried.
    """
    longest = max((_longest(each.settings or {}) for each in cluster.brokers), default=_TRANSACTION_MAX_MS)
    now_ms = int(cluster.now.timestamp() * 1000)
    responding = {each.id for each in cluster.running if each.responds}
    led = [(each.topic, each.index) for each in cluster.partitions if each.leader in responding]
    found = await hanging.hanging_in(client, led, longer_than_ms=longest, now_ms=now_ms)
    return sorted(map(_open, found), key=lambda each: (each.topic, each.partition, each.producer_id))


def _open(found: hanging.OpenTransaction) -> OpenTransaction:
    producer = found.producer
    return OpenTransaction(
        found.topic,
        found.partition,
        producer.producer_id,
        producer.start_offset,
        datetime.fromtimestamp(producer.last_timestamp_ms / 1000, UTC),
    )


def _longest(settings: Mapping[str, str]) -> int:
    text = settings.get("transaction.max.timeout.ms", "")
    return int(text) if text.isdecimal() else _TRANSACTION_MAX_MS
