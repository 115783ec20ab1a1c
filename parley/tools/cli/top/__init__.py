"""``parley top``: show what a cluster is doing now: its brokers, topics by rate, and groups by lag."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from parley.tools.cli.app import App
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, BootstrapServer, CommandConfig, OutputFormat
from parley.tools.cli.invocation import CommandError

app = App(
    "Show what a cluster does now: its brokers, topics by the records written per second, and groups by lag.\n\n"
    "The screen is drawn again every `--interval` seconds until Ctrl-C. With `--once`, with `--output`, or if the "
    "output is not a terminal, the figures of one interval are printed. It works with any Kafka cluster: everything "
    "comes from offsets and log directories that clients can request. Sizes need the right Describe on the cluster.",
    examples=[
        ("parley top", "live, until Ctrl-C"),
        ("parley top --once", "one time, for a log"),
        ("parley top --output json | jq '.groups[] | select(.lag > 1000)'", "for scripts"),
    ],
)


@app.only_command()
def top(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    interval: Annotated[float, typer.Option("--interval", help="Seconds between two samples of the cluster.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the figures of one interval and exit.")] = False,
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics, too.")] = False,
    command_config: CommandConfig = None,
    output_format: OutputFormat = None,
) -> None:
    if not 0.1 <= interval <= 3600:
        raise CommandError(f"--interval takes 0.1 to 3600 seconds, not {interval:g}.")
    from parley.tools.cli.cluster_client import on_cluster
    from parley.tools.cli.output import print_data
    from parley.tools.cli.top import live

    if not once and output_format is None and sys.stdout.isatty():
        on_cluster(bootstrap_server, command_config, lambda client: live.watch(client, interval, internal=internal))
        return
    figures = on_cluster(
        bootstrap_server, command_config, lambda client: live.once(client, interval, internal=internal)
    )
    if output_format:
        print_data(figures.as_data(), output_format)
    else:
        print("\n".join(figures.lines()))
