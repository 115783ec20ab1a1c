"""Find transactions that are open in a partition although their coordinator will never end them.

A transaction hangs if no transactional id has its producer id, or if the coordinator does not list the partition in the
open transaction. A transaction that has run for less than the longest allowed timeout is not suspected, because its
coordinator may still end it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parley.protocol.client import Client
from parley.protocol.errors import KafkaError
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster_client import check
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.transactions.states import (
    ActiveProducer,
    Transaction,
    check_exists,
    describe_producers,
    describe_transaction,
    list_transactions,
)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in one partition."""

    topic: str
    partition: int
    producer: ActiveProducer


@dataclass(frozen=True, slots=True)
class Scope:
    """Where to search: one topic, one partition of it, or all partitions on a broker."""

    topic: str = ""
    partition: int | None = None
    broker: int | None = None

    def check(self) -> None:
        """Raise ``CommandError`` if the scope is empty or contradictory."""
        if not self.topic and self.broker is None:
            raise CommandError("find-hanging needs --topic or --broker-id, to limit the search.")
        if self.partition is not None and not self.topic:
            raise CommandError("--partition needs --topic.")


async def find_hanging(client: Client, scope: Scope, *, longer_than_ms: int, now_ms: int) -> list[OpenTransaction]:
    """Return the hanging transactions in the scope that have had no record for longer than ``longer_than_ms``, sorted
    by topic and partition. Raises ``CommandError`` if the scope does not exist or a broker rejects a request."""
    await check_exists(client, broker=scope.broker, topic=scope.topic, partition=scope.partition)
    partitions = await _partitions(client, scope)
    return await hanging_in(client, partitions, node=scope.broker, longer_than_ms=longer_than_ms, now_ms=now_ms)


async def hanging_in(
    client: Client, partitions: Sequence[TopicPartition], *, node: int | None = None, longer_than_ms: int, now_ms: int
) -> list[OpenTransaction]:
    """Return the hanging transactions in these partitions, as reported by their leaders or by broker ``node``.

    Transactions with a record from the last ``longer_than_ms`` are left out. Raises ``CommandError`` if a broker
    rejects a request.
    """
    suspects = [
        OpenTransaction(*where, producer)
        async for where, producers in describe_producers(client, partitions, node=node)
        for producer in producers
        if producer.start_offset >= 0 and now_ms - producer.last_timestamp_ms > longer_than_ms
    ]
    if not suspects:
        return []
    ids = {one.producer.producer_id for one in suspects}
    listed = await list_transactions(client, producer_ids=ids)
    described = {one.producer_id: await describe_transaction(client, one.transactional_id) for one in listed}
    return sorted(hanging(suspects, described), key=lambda one: (one.topic, one.partition))


def hanging(suspects: Sequence[OpenTransaction], known: Mapping[int, Transaction | None]) -> list[OpenTransaction]:
    """Return the open transactions that their coordinator will not end in their partition.

    ``known`` contains the state of each producer id's transaction, or None if its transactional id has been removed. A
    coordinator lists all partitions of an open transaction. For a transaction that is about to end, it lists the
    partitions without a marker.
    """
    ended_by = {number: set(one.partitions) if one else set() for number, one in known.items()}
    return [one for one in suspects if (one.topic, one.partition) not in ended_by.get(one.producer.producer_id, ())]


async def live(client: Client, where: TopicPartition, producer_id: int) -> Transaction | None:
    """Return the producer's transaction that its coordinator will end in this partition.

    Returns None if the transaction hangs, or if the client may not query the coordinators.
    """
    try:
        listed = await list_transactions(client, producer_ids=[producer_id])
        described = [await describe_transaction(client, one.transactional_id) for one in listed]
    except (CommandError, KafkaError):
        return None
    return next((one for one in described if one is not None and where in one.partitions), None)


async def _partitions(client: Client, scope: Scope) -> list[TopicPartition]:
    if scope.partition is not None:
        return [(scope.topic, scope.partition)]
    found: list[TopicPartition] = []
    for topic in (await client.metadata([scope.topic] if scope.topic else None)).topics:
        check(topic.error_code, doing=f"Failed to describe topic {topic.name}")
        found += [
            (topic.name or "", one.partition_index)
            for one in topic.partitions
            if scope.broker is None or scope.broker in one.replica_nodes
        ]
    return sorted(found)
