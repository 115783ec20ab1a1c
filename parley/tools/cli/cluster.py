"""``parley cluster``: show the cluster's id and its brokers' addresses, or unregister a broker, as
kafka-cluster does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.tools.cli.app import App, example_text
from parley.tools.cli.cluster_client import check, on_cluster
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, OutputFormat
from parley.tools.cli.output import print_data

if TYPE_CHECKING:
    from parley.protocol.client import Client

_EXAMPLES = {
    "cluster-id": [("parley cluster cluster-id", "the id, the same on every broker")],
    "list-endpoints": [
        ("parley cluster list-endpoints", "the running brokers"),
        ("parley cluster list-endpoints --include-fenced-brokers --json", "fenced brokers too, as JSON"),
    ],
    "unregister": [("parley cluster unregister --id 3", "broker 3 was removed permanently")],
}

app = App(
    "Show the cluster's id and its brokers' addresses, or unregister a broker that will not return.\n\n"
    "`parley cluster COMMAND --help` describes a subcommand.",
    examples=[each[0] for each in _EXAMPLES.values()],
)

_Bootstrap = Annotated[
    str, typer.Option("--bootstrap-server", "-b", help="Brokers to connect to first: host:port,host:port,...")
]
_Config = Annotated[
    Path | None,
    typer.Option("--command-config", "--config", "-c", help="Properties file for the client of this command."),
]


async def describe(client: Client, *, fenced: bool) -> Any:
    """Return the DescribeCluster response of any broker. It includes fenced brokers if ``fenced`` is true and the
    broker can list them. Raises ``CommandError`` if the broker rejects the request."""
    from parley.protocol.messages.metadata import DescribeClusterRequest

    version = await client.version_for(DescribeClusterRequest)
    answer = await client.send(DescribeClusterRequest(include_fenced_brokers=fenced and version >= 2))
    check(answer.error_code, answer.error_message)
    return answer


def cluster_id(bootstrap_server: _Bootstrap = DEFAULT_BOOTSTRAP, command_config: _Config = None) -> None:
    """Show the id of the cluster."""
    found = on_cluster(bootstrap_server, command_config, lambda client: describe(client, fenced=False))
    print(f"Cluster ID: {found.cluster_id}")


def list_endpoints(
    bootstrap_server: _Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: _Config = None,
    include_fenced_brokers: Annotated[
        bool, typer.Option("--include-fenced-brokers", help="Include registered brokers that are not running.")
    ] = False,
    output_format: OutputFormat = None,
) -> None:
    """Show the brokers' addresses."""
    found = on_cluster(bootstrap_server, command_config, lambda client: describe(client, fenced=include_fenced_brokers))
    brokers = sorted(found.brokers, key=lambda broker: broker.broker_id)
    if output_format:
        print_data([_as_data(broker) for broker in brokers], output_format)
        return
    for line in endpoint_lines(brokers):
        print(line)


def endpoint_lines(brokers: Iterable[Any]) -> list[str]:
    """Format the brokers as the table of kafka-cluster."""
    rows = [
        (str(one.broker_id), one.host, str(one.port), str(one.rack or "null"), _state(one), "broker") for one in brokers
    ]
    widest = max([len(row[1]) for row in rows], default=0)
    form = f"{{:<10}} {{:<{max(widest, 4)}}} {{:<10}} {{:<10}} {{:<10}} {{:<15}}"
    return [form.format(*row) for row in [("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"), *rows]]


def _state(broker: Any) -> str:
    return "fenced" if broker.is_fenced else "unfenced"


def _as_data(broker: Any) -> dict[str, object]:
    from parley.protocol.host_label import host_label_of

    return {
        "id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "hostLabel": host_label_of(broker),
        "state": _state(broker),
    }


def unregister(
    id_: Annotated[int, typer.Option("--id", "-i", help="The broker to unregister; stop it first.")],
    bootstrap_server: _Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: _Config = None,
) -> None:
    """Unregister a broker that will not return."""
    on_cluster(bootstrap_server, command_config, lambda client: _unregister(client, id_))
    print(f"Broker {id_} is no longer registered.")


async def _unregister(client: Client, broker: int) -> None:
    from parley.protocol.messages.quorum import UnregisterBrokerRequest

    answer = await client.send(UnregisterBrokerRequest(broker_id=broker), node=await client.controller())
    check(answer.error_code, answer.error_message, doing=f"Broker {broker} was not unregistered")


_COMMANDS: dict[str, Callable[..., Awaitable[None] | None]] = {
    "cluster-id": cluster_id,
    "list-endpoints": list_endpoints,
    "unregister": unregister,
}
for _name, _function in _COMMANDS.items():
    app.command(name=_name, epilog=example_text(_EXAMPLES[_name]))(_function)
