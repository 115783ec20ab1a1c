"""``parley transactions``: show transactions, find those that hang, and abort them, as kafka-transactions does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.app import App, example_text
from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, CommandConfig, OnlyBootstrapServer, OutputFormat
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import Format, print_data

if TYPE_CHECKING:
    from parley.protocol.client import Client
    from parley.tools.cli.transactions.aborting import Marker
    from parley.tools.cli.transactions.states import ActiveProducer

_EXAMPLES = {
    "list": [
        ("parley transactions list", "all transactional ids and their states"),
        ("parley transactions list --duration-filter 60000", "those with a transaction open for over a minute"),
    ],
    "describe": [("parley transactions describe --transactional-id orders-1", "its state, and its partitions")],
    "describe-producers": [
        ("parley transactions describe-producers --topic orders --partition 0", "the producers of a partition"),
    ],
    "abort": [
        (
            "parley transactions abort --topic orders --partition 0 --start-offset 4711",
            "end a hanging transaction, so that readers of committed records can continue",
        )
    ],
    "find-hanging": [
        (
            "parley transactions find-hanging --topic orders",
            "transactions that are open in a partition, but unknown to their coordinator",
        ),
    ],
    "force-terminate": [
        ("parley transactions force-terminate --transactional-id orders-1", "abort its transaction, fence its producer")
    ],
}
_BEFORE_THE_COMMAND: Final = ("--bootstrap-server", "--command-config")


class _TransactionsApp(App):
    """An app whose common options may precede the subcommand, as kafka-transactions requires."""

    def prepared(self, arguments: Sequence[str]) -> list[str]:
        words = list(arguments)
        first = 0
        while first < len(words) and words[first].partition("=")[0] in _BEFORE_THE_COMMAND:
            first += 1 if "=" in words[first] else 2
        return super().prepared([*words[first : first + 1], *words[:first], *words[first + 1 :]])


app = _TransactionsApp(
    "Show transactional ids and the producers of partitions, find hanging transactions, and abort them.\n\n"
    "A hanging transaction is open in a partition, but its coordinator will not end it: readers of committed records "
    "wait for it forever. `parley transactions COMMAND --help` describes a subcommand.",
    examples=[_EXAMPLES[name][0] for name in ("list", "describe", "find-hanging", "abort")],
)

_TransactionalId = Annotated[str, typer.Option("--transactional-id", help="The transactional id.")]
_Topic = Annotated[str, typer.Option("--topic", help="The topic.")]
_Partition = Annotated[int, typer.Option("--partition", min=0, help="The number of the partition.")]


def list_(
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    duration_filter: Annotated[
        int,
        typer.Option("--duration-filter", help="Only transactions open for longer, in milliseconds; -1 for all."),
    ] = -1,
    transactional_id_pattern: Annotated[
        str, typer.Option("--transactional-id-pattern", help="Only ids that match this regular expression (RE2).")
    ] = "",
    output_format: OutputFormat = None,
) -> None:
    """List the transactional ids of all coordinators."""
    from parley.tools.cli.transactions.states import list_transactions

    found = on_cluster(
        bootstrap_server,
        command_config,
        lambda client: list_transactions(client, longer_than_ms=duration_filter, pattern=transactional_id_pattern),
    )
    _show(
        ("TransactionalId", "Coordinator", "ProducerId", "TransactionState"),
        [(one.transactional_id, one.coordinator, one.producer_id, one.state) for one in found],
        output_format=output_format,
    )


def describe(
    transactional_id: _TransactionalId,
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    output_format: OutputFormat = None,
) -> None:
    """Show the state of a transactional id."""
    from parley.tools.cli.transactions.states import describe_transaction, unknown_id

    one = on_cluster(bootstrap_server, command_config, lambda client: describe_transaction(client, transactional_id))
    if one is None:
        raise unknown_id(transactional_id)
    is_open = one.started_at_ms >= 0
    row = (
        one.coordinator,
        one.transactional_id,
        one.producer_id,
        one.producer_epoch,
        one.state,
        one.timeout_ms,
        one.started_at_ms if is_open else None,
        _now_ms() - one.started_at_ms if is_open else None,
        list(one.partitions),
    )
    _show(
        (
            "CoordinatorId",
            "TransactionalId",
            "ProducerId",
            "ProducerEpoch",
            "TransactionState",
            "TransactionTimeoutMs",
            "CurrentTransactionStartTimeMs",
            "TransactionDurationMs",
            "TopicPartitions",
        ),
        [row],
        output_format=output_format,
    )


def describe_producers(
    topic: _Topic,
    partition: _Partition,
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    broker_id: Annotated[
        int | None, typer.Option("--broker-id", help="The broker whose replica to query; the leader unless given.")
    ] = None,
    output_format: OutputFormat = None,
) -> None:
    """Show the producers that a partition remembers."""
    from parley.tools.cli.transactions import states

    async def producers(client: Client) -> list[ActiveProducer]:
        await states.check_exists(client, broker=broker_id, topic=topic, partition=partition)
        found = states.describe_producers(client, [(topic, partition)], node=broker_id)
        return [one async for _, producers in found for one in producers]

    _show(
        (
            "ProducerId",
            "ProducerEpoch",
            "LatestCoordinatorEpoch",
            "LastSequence",
            "LastTimestamp",
            "CurrentTransactionStartOffset",
        ),
        [
            (
                one.producer_id,
                one.producer_epoch,
                one.coordinator_epoch,
                one.last_sequence,
                one.last_timestamp_ms,
                one.start_offset if one.start_offset >= 0 else None,
            )
            for one in on_cluster(bootstrap_server, command_config, producers)
        ],
        output_format=output_format,
    )


def abort(
    topic: _Topic,
    partition: _Partition,
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", help="The first offset of the transaction; for Kafka 3.0 or newer."),
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", help="Instead of the offset: the id of the producer.")
    ] = None,
    producer_epoch: Annotated[
        int | None, typer.Option("--producer-epoch", help="With --producer-id: the producer's epoch.")
    ] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option("--coordinator-epoch", help="With --producer-id: the epoch of the last marker.")
    ] = None,
) -> None:
    """Abort a hanging transaction in one partition by writing a marker.

    Do this only to a transaction that find-hanging shows: a coordinator that still knows the transaction may commit the
    rest of it. In that case the command prints a warning, and aborts nevertheless, like Kafka's tool.
    """
    from parley.tools.cli.transactions import aborting, hanging, states

    by_producer = (producer_id, producer_epoch, coordinator_epoch)
    if start_offset is None and None in by_producer:
        raise CommandError(
            "Name the transaction by --start-offset, or by --producer-id, --producer-epoch and --coordinator-epoch."
        )

    async def end(client: Client) -> Marker:
        await states.check_exists(client, topic=topic, partition=partition)
        if start_offset is not None:
            marker = await aborting.marker_for(client, topic, partition, start_offset)
        else:
            marker = _marker(topic, partition, *by_producer)
        if (live := await hanging.live(client, (topic, partition), marker.producer_id)) is not None:
            name = live.transactional_id
            print(
                f"Warning: this transaction does not hang. Coordinator {live.coordinator} knows it as {live.state}, of "
                f"the transactional id '{name}'. Its producer may still commit its records in other partitions. "
                f"`parley transactions force-terminate --transactional-id {name}` aborts the whole transaction.",
                file=sys.stderr,
            )
        await aborting.abort(client, marker)
        return marker

    marker = on_cluster(bootstrap_server, command_config, end)
    print(f"{topic}-{partition} now contains an abort marker of producer {marker.producer_id}.", file=sys.stderr)


def _marker(topic: str, partition: int, producer: int | None, epoch: int | None, coordinator: int | None) -> Marker:
    from parley.tools.cli.transactions.aborting import Marker

    assert producer is not None
    assert epoch is not None
    assert coordinator is not None
    # The epoch is -1 if the producer has never had a marker. 0 is not above any coordinator's epoch.
    return Marker(topic, partition, producer, epoch, max(coordinator, 0))


def find_hanging(
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    broker_id: Annotated[int | None, typer.Option("--broker-id", help="Search all replicas of this broker.")] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout", min=0, help="Only transactions without a record for longer, in minutes."
        ),
    ] = 15,
    topic: Annotated[str, typer.Option("--topic", help="Search this topic.")] = "",
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Search this partition only.")] = None,
    output_format: OutputFormat = None,
) -> None:
    """Find transactions that are open in a partition, and that no coordinator will end."""
    from parley.tools.cli.transactions import hanging

    scope = hanging.Scope(topic, partition, broker_id)
    scope.check()
    now_ms = _now_ms()
    limit_ms = max_transaction_timeout * 60_000
    found = on_cluster(
        bootstrap_server,
        command_config,
        lambda client: hanging.find_hanging(client, scope, longer_than_ms=limit_ms, now_ms=now_ms),
    )
    _show(
        (
            "Topic",
            "Partition",
            "ProducerId",
            "ProducerEpoch",
            "CoordinatorEpoch",
            "StartOffset",
            "LastTimestamp",
            "Duration(min)",
        ),
        [
            (
                one.topic,
                one.partition,
                one.producer.producer_id,
                one.producer.producer_epoch,
                one.producer.coordinator_epoch,
                one.producer.start_offset,
                one.producer.last_timestamp_ms,
                (now_ms - one.producer.last_timestamp_ms) // 60_000,
            )
            for one in found
        ],
        output_format=output_format,
    )


def force_terminate(
    transactional_id: Annotated[
        str, typer.Option("--transactional-id", "--transactionalId", help="The transactional id.")
    ],
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Abort the open transaction of a transactional id at its coordinator, and fence its producer.

    Kafka's tool calls this forceTerminateTransaction; that name is accepted, too.
    """
    from parley.tools.cli.transactions import aborting

    on_cluster(bootstrap_server, command_config, lambda client: aborting.force_terminate(client, transactional_id))
    print(
        f"The transactional id '{transactional_id}' no longer has an open transaction, and its producer is fenced.",
        file=sys.stderr,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- Output ---

_Cell = str | int | None | list[TopicPartition]


def _show(head: Sequence[str], rows: Sequence[Sequence[_Cell]], *, output_format: Format | None) -> None:
    """Print a table as kafka-transactions does, or a list of objects with the same names."""
    if output_format:
        names = [name[0].lower() + name[1:].replace("(min)", "Min") for name in head]
        print_data([dict(zip(names, map(_data, row), strict=True)) for row in rows], output_format)
        return
    table = [head, *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(head))]
    for row in table:
        print("".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True)))


def _data(cell: _Cell) -> Any:
    return [f"{topic}-{index}" for topic, index in cell] if isinstance(cell, list) else cell


def _text(cell: _Cell) -> str:
    return ",".join(_data(cell)) if isinstance(cell, list) else str(cell)


_COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_,
    "describe": describe,
    "describe-producers": describe_producers,
    "abort": abort,
    "find-hanging": find_hanging,
    "force-terminate": force_terminate,
}
for _name, _function in _COMMANDS.items():
    app.command(name=_name, epilog=example_text(_EXAMPLES[_name]))(_function)
app.command(name="forceTerminateTransaction", hidden=True, epilog=example_text(_EXAMPLES["force-terminate"]))(
    force_terminate
)
