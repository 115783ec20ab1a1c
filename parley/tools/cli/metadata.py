"""``parley metadata``: show the controller, the brokers, the partitions' leaders, and their problems.

Most of the data comes from Kafka's own APIs. Epochs and listeners, which only Parley's brokers exchange, are shown if
the controller responds to FetchMetadata. While the coordination store is down, no broker can be fenced, so the cluster
reports a stopped broker as alive. Therefore the command connects to each broker itself, and queries the controller for
the state of the store.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.cluster import describe as describe_cluster
from parley.tools.cli.cluster_client import TIMEOUT_MS, on_cluster, until_ready
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, BootstrapServer, CommandConfig, OutputFormat
from parley.tools.cli.output import print_data
from parley.tools.cli.topics.describing import matching
from parley.tools.plurals import plural

if TYPE_CHECKING:
    from parley.protocol.client import Client

app = App(
    "Show the state of the cluster: controller, brokers, leaders, replicas, and what is wrong with them.\n\n"
    "A partition's state is `ok`, `under-replicated` (a replica is not in sync), `leaderless` (it cannot be used), or "
    "`not preferred` (its leader is not the first of its replicas).",
    examples=[
        ("parley metadata", "the brokers, and the partitions of all topics but healthy internal ones"),
        ("parley metadata --under-replicated-partitions", "only partitions with replicas out of sync"),
        ("parley metadata --json", "as JSON"),
    ],
)


_TROUBLED: Final = ("leaderless", "under-replicated")
CONNECT_MAX_S = 2.0
"""The timeout for connecting to a broker, in seconds."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """One broker. ``epoch`` and ``listeners`` are None if the cluster does not report them.

    ``reachable`` is False if the broker accepts no connection from this machine.
    """

    id: int
    host: str
    port: int
    rack: str | None
    host_label: str | None
    fenced: bool
    reachable: bool
    epoch: int | None
    listeners: Sequence[str] | None
    leads: int
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition. ``leader`` is None if it has no leader."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]
    internal: bool
    """True for the partition of an internal topic, such as __consumer_offsets."""

    @property
    def state(self) -> str:
        """The partition's most serious problem, or ``ok``."""
        if self.leader is None:
            return "leaderless"
        if len(self.isr) < len(self.replicas):
            return "under-replicated"
        return "ok" if self.leader == self.replicas[0] else "not preferred"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as seen by its controller, or by any broker if the controller does not respond."""

    cluster_id: str
    controller_id: int
    controller_epoch: int | None
    version: int | None
    brokers: Sequence[BrokerView]
    partitions: Sequence[PartitionView]
    warnings: Sequence[str]
    """The reasons why this view may be out of date."""


async def view(client: Client) -> ClusterView:
    """Request the whole view from the cluster. Raises KafkaError if no broker responds, and ``CommandError`` if a
    broker rejects the request."""

    async def ask() -> Any:
        return await describe_cluster(client, fenced=True)

    cluster = await until_ready(ask, lambda answer: answer.error_code, TIMEOUT_MS)
    metadata = await client.metadata()
    partitions = sorted(
        (_partition(topic.name or "", one, topic.is_internal) for topic in metadata.topics for one in topic.partitions),
        key=lambda each: (each.topic, each.partition),
    )
    ordered = sorted(cluster.brokers, key=lambda each: each.broker_id)
    inner, store_problem, *reachable = await asyncio.gather(
        _from_controller(client, cluster.controller_id),
        _store_problem(client, cluster.controller_id),
        *(_is_reachable(broker.host, broker.port) for broker in ordered),
    )
    known = inner.brokers if inner is not None else {}
    brokers = [
        _broker(broker, known.get(broker.broker_id), partitions, is_reachable)
        for broker, is_reachable in zip(ordered, reachable, strict=True)
    ]
    return ClusterView(
        cluster.cluster_id,
        cluster.controller_id,
        None if inner is None else inner.controller_epoch,
        None if inner is None else inner.version,
        brokers,
        partitions,
        warnings_for(cluster.controller_id, brokers, store_problem),
    )


def warnings_for(controller_id: int, brokers: Sequence[BrokerView], store_problem: str) -> list[str]:
    """Return the reasons why the cluster's view may be out of date, as clauses for the operator. ``store_problem``
    describes an outage of the coordination store, or is empty."""
    silent = [one.id for one in brokers if not one.reachable and not one.fenced]
    warnings = []
    if store_problem:
        warnings.append(
            f"{store_problem}: no broker can be fenced and no leader can change, so the brokers and leaders shown are "
            "those from before the outage"
        )
    elif controller_id in silent:
        warnings.append(
            f"the controller, broker {controller_id}, cannot be reached and no other one is elected: the brokers and "
            "leaders shown are those from before the outage. Check the store with `parley coordination status`"
        )
    if silent:
        numbers = ", ".join(map(str, silent))
        warnings.append(f"not fenced, but not reachable from this machine: broker {numbers}")
    return warnings


def _partition(topic: str, one: Any, is_internal: bool) -> PartitionView:
    leader = one.leader_id if one.leader_id >= 0 else None
    offline = one.offline_replicas or []
    return PartitionView(
        topic, one.partition_index, leader, one.leader_epoch, one.replica_nodes, one.isr_nodes, offline, is_internal
    )


def _broker(broker: Any, registration: Any, partitions: Iterable[PartitionView], is_reachable: bool) -> BrokerView:
    from parley.protocol.host_label import host_label_of

    number = broker.broker_id
    held = [one for one in partitions if number in one.replicas]
    return BrokerView(
        number,
        broker.host,
        broker.port,
        broker.rack,
        host_label_of(broker),
        broker.is_fenced,
        is_reachable,
        registration and registration.epoch,
        registration and [f"{each.listener}://{each.host}:{each.port}" for each in registration.endpoints],
        sum(one.leader == number for one in held),
        len(held),
        sum(number in one.isr for one in held),
    )


async def _from_controller(client: Client, controller: int) -> Any:
    """Return the controller's own image of the metadata, or None if the controller does not respond with one."""
    from parley.broker.metadata.changes import Delta
    from parley.broker.metadata.encoding import changes_from_bytes
    from parley.broker.metadata.image import MetadataImage
    from parley.protocol.errors import KafkaError
    from parley.protocol.messages.cluster_metadata import FetchMetadataRequest

    try:
        answer = await client.send(FetchMetadataRequest(broker_id=-1, max_wait_ms=0), node=controller)
    except KafkaError:
        return None
    if answer.error_code or not answer.is_whole:
        return None
    image = MetadataImage("")
    for step in answer.steps:
        image = image.apply(Delta(answer.controller_epoch, step.version, changes_from_bytes(step.changes)))
    return image


async def _store_problem(client: Client, controller: int) -> str:
    """Return a description of the store's outage as a clause. It is empty if the store responds, or if the controller
    is not a Parley broker.

    A controller that has lost its role because of the outage responds with REQUEST_TIMED_OUT, as does any other broker.
    """
    from parley.protocol.errors import ErrorCode, KafkaError
    from parley.protocol.messages.coordination import STATUS, MigrateCoordinationRequest

    try:
        response = await client.send(MigrateCoordinationRequest(action=STATUS, url=None), node=controller)
    except KafkaError:
        return ""
    match response.error_code, response.error_message or "":
        case ErrorCode.COORDINATOR_NOT_AVAILABLE, reason:
            return f"the coordination store does not respond ({reason})"
        case ErrorCode.REQUEST_TIMED_OUT, message:
            outage, _, _ = message.partition(". ")  # the other sentences describe the effects on the cluster
            return outage[:1].lower() + outage[1:]
    return ""


async def _is_reachable(host: str, port: int) -> bool:
    """Return True if the broker accepts a connection from this machine."""
    try:
        async with asyncio.timeout(CONNECT_MAX_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


# --- Output ---


def show(cluster: ClusterView, partitions: Sequence[PartitionView], hidden: int) -> None:
    """Print the cluster with only these partitions, and the number of hidden partitions of internal topics."""
    for warning in cluster.warnings:
        print(f"Warning: {warning}.", file=sys.stderr)
    print("\n".join(_summary(cluster)))
    print()
    print("\n".join(_broker_table(cluster.brokers)))
    if partitions:
        print()
        rows = [
            (
                one.topic,
                str(one.partition),
                "none" if one.leader is None else str(one.leader),
                str(one.leader_epoch),
                _numbers(one.replicas),
                _numbers(one.isr),
                one.state,
            )
            for one in partitions
        ]
        print("\n".join(_table(["TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "STATE"], rows)))
    if hidden:
        print(f"\nHealthy and not shown: {plural(hidden, 'partition')} of internal topics (--internal shows them).")


def _summary(cluster: ClusterView) -> list[str]:
    states = [one.state for one in cluster.partitions]
    troubles = {name: states.count(name) for name in ("leaderless", "under-replicated", "not preferred")}
    fenced = sum(broker.fenced for broker in cluster.brokers)
    epoch = "" if cluster.controller_epoch is None else f", epoch {cluster.controller_epoch}"
    version = "" if cluster.version is None else f", metadata version {cluster.version}"
    who = f"broker {cluster.controller_id}{epoch}{version}" if cluster.controller_id >= 0 else "none at this moment"
    return [
        f"Cluster      {cluster.cluster_id}",
        f"Controller   {who}",
        f"Brokers      {len(cluster.brokers)}, {fenced} of them fenced",
        f"Partitions   {len(states)}: " + ", ".join(f"{count} {name}" for name, count in troubles.items()),
    ]


def _broker_table(brokers: Sequence[BrokerView]) -> list[str]:
    """Return the lines about the brokers. The column of the host labels exists only if a broker has one."""
    labels = ["HOST LABEL"] if any(one.host_label for one in brokers) else []
    rows = [
        (
            str(one.id),
            one.host,
            str(one.port),
            one.rack or "-",
            *(one.host_label or "-" for _ in labels),
            "fenced" if one.fenced else "unfenced" if one.reachable else "unreachable",
            "-" if one.epoch is None else str(one.epoch),
            str(one.leads),
            f"{one.in_sync} of {one.replicas}",
        )
        for one in brokers
    ]
    return _table(["BROKER", "HOST", "PORT", "RACK", *labels, "STATE", "EPOCH", "LEADS", "IN SYNC"], rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [tuple(titles), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


@app.only_command()
def metadata(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    topic: Annotated[
        str, typer.Option("--topic", help="Show only topics whose names match this regular expression.")
    ] = "",
    under_replicated_partitions: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Show only partitions with replicas out of sync.")
    ] = False,
    internal: Annotated[
        bool,
        typer.Option("--internal", help="Show also partitions of internal topics that have a leader and are in sync."),
    ] = False,
    command_config: CommandConfig = None,
    output_format: OutputFormat = None,
) -> None:
    fits = matching(topic)
    cluster = on_cluster(bootstrap_server, command_config, view)
    chosen = [
        one
        for one in cluster.partitions
        if fits(one.topic) and (not under_replicated_partitions or len(one.isr) < len(one.replicas))
    ]
    if output_format:
        print_data(_as_data(cluster, chosen), output_format)
        return
    shown = [one for one in chosen if internal or topic or not one.internal or one.state in _TROUBLED]
    show(cluster, shown, len(chosen) - len(shown))


def _as_data(cluster: ClusterView, partitions: Sequence[PartitionView]) -> dict[str, object]:
    return {
        **_camel(asdict(cluster)),
        "brokers": [_camel(asdict(one)) for one in cluster.brokers],
        "partitions": [{**_camel(asdict(one)), "state": one.state} for one in partitions],
    }


def _camel(values: dict[str, object]) -> dict[str, object]:
    """Rename the keys to camel case, as in all JSON output."""
    return {re.sub("_(.)", lambda match: match[1].upper(), name): value for name, value in values.items()}
