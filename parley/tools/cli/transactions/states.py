"""Query a cluster's transactions: the coordinators' transactional ids, and the producers in partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.producers import DescribeProducersRequest
from parley.protocol.messages.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from parley.protocol.schema import Request
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster_client import TIMEOUT_MS, by_leader, by_topic, check, until_ready
from parley.tools.cli.invocation import CommandError

_BY_TRANSACTIONAL_ID: Final = 1
"""The key type of a FindCoordinator request for a transactional id."""
_PARTITIONS_MAX: Final = 500
"""The maximum number of partitions in one DescribeProducers request, as in Kafka's tool, so that a request does not
block a broker with many partitions."""


@dataclass(frozen=True, slots=True, order=True)
class ListedTransaction:
    """A transactional id as listed by its coordinator."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of a transactional id, and the partitions of its open transaction."""

    coordinator: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_at_ms: int
    """The start time in milliseconds since 1970, or -1 if no transaction is open."""
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer known to a replica of a partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """The coordinator epoch of the last transaction marker, or -1 if there was none."""
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int
    """The first offset of the open transaction, or -1 if none is open."""


async def check_exists(
    client: Client, *, broker: int | None = None, topic: str = "", partition: int | None = None
) -> None:
    """Raise ``CommandError`` if the cluster lacks a topic, partition or broker that the operator named, instead of
    waiting for it to appear."""
    found = await client.metadata([topic] if topic else [])
    brokers = sorted(one.node_id for one in found.brokers)
    if broker is not None and broker not in brokers:
        raise CommandError(f"Broker {broker} does not exist. Existing brokers: {', '.join(map(str, brokers))}.")
    for one in found.topics:
        if one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise CommandError(f"Topic '{topic}' does not exist. `parley topics --list` shows the existing topics.")
        if partition is not None and one.partitions and partition >= len(one.partitions):
            raise CommandError(
                f"Topic '{topic}' has no partition {partition}. Its last partition is {len(one.partitions) - 1}."
            )


async def list_transactions(
    client: Client, *, longer_than_ms: int = -1, pattern: str = "", producer_ids: Iterable[int] = ()
) -> list[ListedTransaction]:
    """Return the transactional ids of all coordinators that match the filters, sorted. Raises ``CommandError`` if a
    broker is too old for a filter, or rejects the request."""
    found: list[ListedTransaction] = []
    for broker in (await client.metadata([])).brokers:
        node = broker.node_id
        request = await _list_request(client, node, longer_than_ms, pattern, producer_ids)
        answer = await until_ready(
            lambda node=node, request=request: client.send(request, node=node),  # type: ignore[misc]
            lambda answer: int(answer.error_code),
            TIMEOUT_MS,
        )
        check(answer.error_code, doing=f"Broker {node} did not list its transactions")
        found += [
            ListedTransaction(one.transactional_id, node, one.producer_id, one.transaction_state)
            for one in answer.transaction_states
        ]
    return sorted(found)


async def _list_request(
    client: Client, node: int, longer_than_ms: int, pattern: str, producer_ids: Iterable[int]
) -> ListTransactionsRequest:
    """Return the request with its filters. Raises ``CommandError`` if the broker is too old for one of them."""
    version = await client.version_for(ListTransactionsRequest, node=node)
    for option, is_given, since in (
        ("--duration-filter", longer_than_ms >= 0, 1),
        ("--transactional-id-pattern", bool(pattern), 2),
    ):
        if is_given and version < since:
            raise CommandError(f"Broker {node} is too old for {option}. Leave it out, and filter the output.")
    return ListTransactionsRequest(
        state_filters=[],
        producer_id_filters=list(producer_ids),
        duration_filter=max(longer_than_ms, -1),
        transactional_id_pattern=pattern or None,
    )


async def describe_transaction(client: Client, transactional_id: str) -> Transaction | None:
    """Return the state of a transactional id, or None if its coordinator does not know it. Raises ``CommandError`` if
    the coordinator rejects the request."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    node, answer = await of_coordinator(
        client, transactional_id, request, lambda answer: int(answer.transaction_states[0].error_code)
    )
    one = answer.transaction_states[0]
    if one.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    check(one.error_code, doing=f"Failed to describe transaction state of transactional-id `{transactional_id}`")
    partitions = [(each.topic, index) for each in one.topics for index in each.partitions]
    return Transaction(
        node,
        one.transactional_id,
        one.producer_id,
        one.producer_epoch,
        one.transaction_state,
        one.transaction_timeout_ms,
        one.transaction_start_time_ms,
        sorted(partitions),
    )


def unknown_id(transactional_id: str) -> CommandError:
    """Return the error for a transactional id that is unknown to its coordinator."""
    return CommandError(
        f"The cluster does not know the transactional id `{transactional_id}`. `parley transactions list` "
        "shows the known ones."
    )


async def of_coordinator(
    client: Client, transactional_id: str, request: Request, code_of: Callable[[Any], int]
) -> tuple[int, Any]:
    """Send a request to the coordinator of a transactional id. Retries while the error is retriable, for up to
    ``TIMEOUT_MS``. Raises KafkaError if the last request got no response.

    Returns the id of the coordinator, and its response, which may contain an error code.
    """

    async def ask() -> tuple[int, Any]:
        node = await client.coordinator(transactional_id, _BY_TRANSACTIONAL_ID)
        return node, await client.send(request, node=node)

    return await until_ready(ask, lambda found: code_of(found[1]), TIMEOUT_MS)


async def describe_producers(
    client: Client, partitions: Sequence[TopicPartition], *, node: int | None = None
) -> AsyncIterator[tuple[TopicPartition, list[ActiveProducer]]]:
    """Yield each partition with the producers that its leader knows, or the replica on broker ``node``.

    Raises ``CommandError`` if a broker rejects the request.
    """
    for first in range(0, len(partitions), _PARTITIONS_MAX):
        some = partitions[first : first + _PARTITIONS_MAX]

        async def ask(some: Sequence[TopicPartition] = some) -> list[Any]:
            await client.metadata(by_topic(some))  # the leaders may have changed since the last attempt
            requested = {node: list(some)} if node is not None else await by_leader(client, some)
            return [await client.send(_producers_request(each), node=at) for at, each in requested.items()]

        for answer in await until_ready(ask, _first_error, TIMEOUT_MS):
            for topic in answer.topics:
                for one in topic.partitions:
                    at = "leader" if node is None else f"broker {node}"
                    doing = f"Failed to describe producers for partition {topic.name}-{one.partition_index} on {at}"
                    check(one.error_code, one.error_message, doing=doing)
                    yield (topic.name, one.partition_index), [_active(each) for each in one.active_producers]


def _producers_request(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    topics = [
        DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=indexes)
        for topic, indexes in by_topic(partitions).items()
    ]
    return DescribeProducersRequest(topics=topics)


def _first_error(answers: Iterable[Any]) -> int:
    codes = (one.error_code for answer in answers for topic in answer.topics for one in topic.partitions)
    return next((code for code in codes if code), 0)


def _active(one: Any) -> ActiveProducer:
    return ActiveProducer(
        one.producer_id,
        one.producer_epoch,
        one.coordinator_epoch,
        one.last_sequence,
        one.last_timestamp,
        one.current_txn_start_offset,
    )
