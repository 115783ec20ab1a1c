"""Warns of partitions without a leader. librdkafka waits for a leader, and reports nothing meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from parley.tools.cli.librdkafka import Connection

if TYPE_CHECKING:
    from parley.protocol.client import Client
    from parley.protocol.messages.metadata import MetadataResponse

_NAMED_MAX: Final = 5
"""The number of partitions that a warning names."""


def described(topic: str, partitions: Collection[int], down: Collection[int]) -> str:
    """Return a sentence about these partitions, which have no leader, and the brokers ``down``, which host replicas and
    are down."""
    named = ", ".join(f"{topic}-{each}" for each in sorted(partitions)[:_NAMED_MAX])
    more = f" and {len(partitions) - _NAMED_MAX} more" if len(partitions) > _NAMED_MAX else ""
    state = "has no leader" if len(partitions) == 1 else "have no leader"
    ids = ", ".join(map(str, sorted(down)))
    why = f": brokers {ids} are down" if len(down) > 1 else f": broker {ids} is down" if down else ""
    return f"{named}{more} {state}{why}"


def described_in(topic: MetadataResponse.MetadataResponseTopic, only: int | None = None) -> str:
    """Return a sentence that names the partitions without a leader in the metadata, or an empty string if all have one.
    With ``only``, the other partitions are ignored."""
    found = [each for each in topic.partitions if each.leader_id < 0 and only in (None, each.partition_index)]
    down = {broker for each in found for broker in each.offline_replicas}
    return described(topic.name or "", [each.partition_index for each in found], down) if found else ""


def ask(connection: Connection, topic: Any, only: int | None = None) -> str:
    """Return a sentence that names the partitions of a topic without a leader and the brokers that are down, or an
    empty string if all have a leader. With ``only``, the other partitions are ignored.

    ``topic`` is librdkafka's metadata. librdkafka does not know which replicas are offline, so Parley's own client
    requests the metadata again. If that fails, the sentence names no brokers.
    """
    found = [index for index, each in topic.partitions.items() if each.leader < 0 and only in (None, index)]
    if not found:
        return ""

    async def work(client: Client) -> str:
        return described_in((await client.metadata([topic.topic])).topics[0], only)

    answer = connection.ask(work)
    return described(topic.topic, found, ()) if answer is None else answer


def warn(sentence: str) -> None:
    """Warn of partitions without a leader, unless the sentence is empty."""
    if sentence:
        print(f"Warning: {sentence}; waiting for one.", file=sys.stderr, flush=True)
