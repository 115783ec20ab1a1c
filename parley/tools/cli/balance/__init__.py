"""``parley balance``: balance replicas and leaders across the brokers, empty a broker, show what a broker holds."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    CommandConfig,
    OnlyBootstrapServer,
    OutputFormat,
    broker_ids,
    one_action,
)
from parley.tools.cli.invocation import FAILED, CommandError
from parley.tools.cli.output import print_data
from parley.tools.plurals import plural

if TYPE_CHECKING:
    from parley.protocol.client import Client
    from parley.tools.balance.cluster import Cluster
    from parley.tools.balance.plan import Goals, Plan

app = App(
    "Balance replicas and leaders over the brokers of a cluster, or empty a broker before it is removed.\n\n"
    "--plan shows which replicas and leaders would move, and why; --execute moves them and waits. A plan "
    "balances the number of replicas and leaders, the bytes on disk, and the bytes per second in and out. Replicas of "
    "a partition stay in different racks. If --execute is interrupted, run it again: it continues. The command works "
    "with any Kafka cluster.",
    examples=[
        ("parley balance --plan", "what would move, with the loads before and after"),
        (
            "parley balance --execute --throttle 50000000",
            "make the moves, at most 50 MB/s, for example after a broker was added",
        ),
        ("parley balance --holds 3", "the replicas on broker 3"),
        ("parley balance --execute --empty-broker 3", "move everything off broker 3, before it is removed"),
    ],
)

_MOST_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley balance``, as given on the command line."""

    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP
    plan: Annotated[bool, typer.Option("--plan", help="Show what would move; changes nothing.")] = False
    execute: Annotated[bool, typer.Option("--execute", help="Make the moves, and wait for them.")] = False
    holds: Annotated[int | None, typer.Option("--holds", min=0, help="Show the replicas on this broker.")] = None
    empty_broker: Annotated[
        str, typer.Option("--empty-broker", help="Move everything off these brokers, such as 3,4, and nothing else.")
    ] = ""
    tolerance: Annotated[
        int,
        typer.Option("--tolerance", min=0, max=100, help="A load within this many percent of its share is balanced."),
    ] = 10
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=0, help="Copy no more bytes than this; plan again for the rest.")
    ] = None
    moves_at_once: Annotated[
        int,
        typer.Option("--moves-at-once", min=1, max=10_000, help="The number of partitions that move at the same time."),
    ] = 10
    throttle: Annotated[
        int | None,
        typer.Option(
            "--throttle",
            min=1,
            help="Maximum bytes per second that a broker sends or receives for moves. "
            "The throttle is removed at the end.",
        ),
    ] = None
    interval: Annotated[
        float,
        typer.Option(
            "--interval", min=0, max=_MOST_SECONDS, help="Seconds over which rates are measured; 0 ignores rates."
        ),
    ] = 5.0
    record: Annotated[
        Path | None,
        typer.Option("--record", help="With --plan: also write the observed state of the cluster to a file."),
    ] = None
    recorded: Annotated[
        Path | None,
        typer.Option("--recorded", help="With --plan: plan for the cluster that --record wrote to this file."),
    ] = None
    command_config: CommandConfig = None
    output_format: OutputFormat = None


@app.only_command_with(Options)
def balance(options: Options) -> None:
    action = one_action(plan=options.plan, execute=options.execute, holds=options.holds is not None)
    if action != "plan" and (options.record or options.recorded):
        raise CommandError("--record and --recorded go with --plan.")
    match action:
        case "holds":
            _holds(options)
        case "plan":
            _plan(options)
        case _:
            _execute(options)


def _goals(options: Options) -> Goals:
    from parley.tools.balance.plan import Goals

    emptied = frozenset(broker_ids(options.empty_broker, "--empty-broker"))
    return Goals(options.tolerance / 100, emptied, options.max_bytes)


def _plan(options: Options) -> None:
    from parley.tools.balance import recording
    from parley.tools.balance.planner import plan

    goals = _goals(options)
    cluster = _observed(options) if options.recorded is None else _read(options.recorded)
    if options.record is not None:
        try:
            options.record.write_text(json.dumps(recording.as_data(cluster)) + "\n")
        except OSError as error:
            raise CommandError(f"The file {options.record} cannot be written: {error.strerror}.") from error
    _show(options, cluster, plan(cluster, goals), goals)


def _execute(options: Options) -> None:
    from parley.tools.cli.balance.executing import Execution, execute
    from parley.tools.cli.balance.observing import observe

    goals = _goals(options)
    say = sys.stderr if options.output_format else sys.stdout

    async def work(client: Client) -> bool:
        from parley.tools.balance.planner import plan

        cluster = await observe(client, options.interval)
        made = plan(cluster, goals)
        _show(options, cluster, made, goals)
        how = Execution(options.throttle, options.moves_at_once)
        await execute(client, made, how, lambda text: print(text, file=say, flush=True))
        return not made.stranded

    if not on_cluster(options.bootstrap_server, options.command_config, work):
        raise typer.Exit(FAILED)


def _observed(options: Options) -> Cluster:
    from parley.tools.cli.balance.observing import observe

    return on_cluster(
        options.bootstrap_server, options.command_config, lambda client: observe(client, options.interval)
    )


def _read(path: Path) -> Cluster:
    from parley.tools.balance import recording

    try:
        return recording.from_data(json.loads(path.read_text()))
    except OSError as error:
        raise CommandError(f"The file {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"The file {path} was not written by --record: {error}.") from error


def _show(options: Options, cluster: Cluster, made: Plan, goals: Goals) -> None:
    from parley.tools.balance import explanation

    if options.output_format:
        print_data(explanation.as_data(cluster, made, goals), options.output_format)
    else:
        print("\n".join(explanation.lines(cluster, made, goals)), flush=True)


def _holds(options: Options) -> None:
    """Print the replicas on a broker, largest first."""
    from parley.tools.cli.balance.observing import observe

    broker = options.holds
    cluster = on_cluster(options.bootstrap_server, options.command_config, lambda client: observe(client, 0))
    held = sorted(
        (one for one in cluster.partitions if broker in one.replicas), key=lambda one: (-one.size, one.topic, one.index)
    )
    rows: list[dict[str, Any]] = [
        {"topic": one.topic, "partition": one.index, "leads": one.leader == broker, "bytes": one.size} for one in held
    ]
    if options.output_format:
        print_data(rows, options.output_format)
        return
    leads = sum(row["leads"] for row in rows)
    size = bytes_text(sum(one.size for one in held))
    print(f"Broker {broker} holds {plural(len(rows), 'replica')} ({size}), and leads {leads} of these partitions.")
    for row in rows:
        role = "leader" if row["leads"] else "follower"
        print(f"  {row['topic']}-{row['partition']}: {role}, {bytes_text(row['bytes'])}")
