"""``parley reassign``: move partitions to other brokers and log directories, as kafka-reassign-partitions does."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from parley.tools.cli.app import App
from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    CommandConfig,
    OnlyBootstrapServer,
    OutputFormat,
    broker_ids,
    one_action,
    required,
)
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.json_input import read_plan
from parley.tools.cli.output import Format, print_data
from parley.tools.cli.reassign.plan import Plan, as_data, as_json, names_of, numbers, parse_assignment, parse_topics

if TYPE_CHECKING:
    from parley.protocol.client import Client
    from parley.tools.cli.reassign.executing import Execution

T = TypeVar("T")

app = App(
    "Move partitions to other brokers or log directories, and change how many replicas they have.\n\n"
    "--generate proposes a plan, --execute starts one, --verify shows its progress (and removes its throttle when it "
    "is done), --cancel stops it. The plan is a JSON file: "
    '{"partitions": [{"topic": "foo", "partition": 1, "replicas": [1,2,3], "log_dirs": ["any","any","/data"]}], '
    '"version": 1}; "log_dirs" may be left out.',
    examples=[
        (
            "parley reassign --generate --topics-to-move-json-file topics.json --broker-list 1,2,4",
            'a plan for the topics in {"topics": [{"topic": "foo"}], "version": 1}; copy it into plan.json',
        ),
        ("parley reassign --execute --reassignment-json-file plan.json --throttle 50000000", "at most 50 MB/s"),
        (
            "parley reassign --verify --reassignment-json-file plan.json",
            "the progress; repeat until the plan is completed",
        ),
        (
            "parley reassign --execute --topic foo --replication-factor 3",
            "more or fewer replicas, without a file; --list shows the progress",
        ),
        ("parley reassign --list", "all moves in progress"),
    ],
)

_GOES_WITH: Final = {
    "generate": ("topics_to_move_json_file", "broker_list", "disable_rack_aware", "topic", "replication_factor"),
    "execute": (
        "topic",
        "replication_factor",
        "reassignment_json_file",
        "throttle",
        "replica_alter_log_dirs_throttle",
        "additional",
        "timeout",
        "disallow_replication_factor_change",
    ),
    "verify": ("reassignment_json_file", "preserve_throttles"),
    "cancel": ("reassignment_json_file", "preserve_throttles", "timeout"),
    "list": (),
}
"""The options that each action accepts."""
TIMEOUT_MS: Final = 10_000


def _refuse_others(action: str, **given: object) -> None:
    """Raise ``CommandError`` for an option that the action does not accept."""
    for name, value in given.items():
        if value not in (None, False, "", []) and name not in _GOES_WITH[action]:
            option = f"--{name.replace('_', '-')}"
            raise CommandError(f"Option {option} can't be used with action --{action}.")


@app.only_command()
def reassign(
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    generate: Annotated[bool, typer.Option("--generate", help="Propose a plan; changes nothing.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Start the moves of a plan.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Show the progress of a plan; if it is done, remove its throttles.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the moves of a plan.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show all moves in progress.")] = False,
    topics_to_move_json_file: Annotated[
        Path | None, typer.Option("--topics-to-move-json-file", allow_dash=True, help="Topics to propose a plan for.")
    ] = None,
    reassignment_json_file: Annotated[
        Path | None, typer.Option("--reassignment-json-file", allow_dash=True, help="The plan; - for stdin.")
    ] = None,
    broker_list: Annotated[
        str, typer.Option("--broker-list", help="The brokers of the proposed plan, such as 0,1,2.")
    ] = "",
    disable_rack_aware: Annotated[
        bool, typer.Option("--disable-rack-aware", help="Propose a plan that ignores racks.")
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="A topic that gets --replication-factor replicas; repeatable."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", min=1, help="With --topic: its replicas, instead of a file. Data stays."),
    ] = None,
    throttle: Annotated[
        int | None, typer.Option("--throttle", min=1, help="Maximum bytes per second that moves copy between brokers.")
    ] = None,
    replica_alter_log_dirs_throttle: Annotated[
        int | None,
        typer.Option(
            "--replica-alter-log-dirs-throttle", min=1, help="Maximum bytes per second between directories of a broker."
        ),
    ] = None,
    additional: Annotated[
        bool, typer.Option("--additional", help="Run even if other moves are in progress; also to change the throttle.")
    ] = False,
    preserve_throttles: Annotated[
        bool, typer.Option("--preserve-throttles", help="Leave the throttles as they are.")
    ] = False,
    disallow_replication_factor_change: Annotated[
        bool,
        typer.Option("--disallow-replication-factor-change", help="Reject a plan that changes the number of replicas."),
    ] = False,
    timeout: Annotated[
        int | None, typer.Option("--timeout", help="How long to wait for log directory moves to start, in ms.")
    ] = None,
    command_config: CommandConfig = None,
    output_format: OutputFormat = None,
) -> None:
    from parley.tools.cli.reassign.executing import Execution

    action = one_action(generate=generate, execute=execute, verify=verify, cancel=cancel, list=list_)
    _refuse_others(
        action,
        topics_to_move_json_file=topics_to_move_json_file,
        reassignment_json_file=reassignment_json_file,
        broker_list=broker_list,
        disable_rack_aware=disable_rack_aware,
        topic=topic or [],
        replication_factor=replication_factor,
        throttle=throttle,
        replica_alter_log_dirs_throttle=replica_alter_log_dirs_throttle,
        additional=additional,
        preserve_throttles=preserve_throttles,
        disallow_replication_factor_change=disallow_replication_factor_change,
        timeout=timeout,
    )

    def run(work: Callable[[Client], Awaitable[T]]) -> T:
        return on_cluster(bootstrap_server, command_config, work)

    if action == "list":
        run(lambda client: _list(client, output_format))
        return
    how = Execution(
        throttle,
        replica_alter_log_dirs_throttle,
        additional,
        not disallow_replication_factor_change,
        TIMEOUT_MS if timeout is None else timeout,
    )
    if topic or replication_factor is not None:
        topics = required(topic, "--topic", action)
        factor = required(replication_factor, "--replication-factor", action)
        if topics_to_move_json_file or reassignment_json_file or broker_list or disable_rack_aware:
            raise CommandError(
                "--topic and --replication-factor replace the file, --broker-list and --disable-rack-aware: leave "
                "these out."
            )
        if throttle is not None:
            raise CommandError(
                "--throttle requires a plan file, because --verify needs it to remove the throttle. Create one with "
                "--generate."
            )
        run(lambda client: _with_factor(client, topics, factor, how if execute else None, output_format))
        return
    if action == "generate":
        path = required(topics_to_move_json_file, "--topics-to-move-json-file", action)
        ids = broker_ids(required(broker_list, "--broker-list", action), "--broker-list")
        if len(set(ids)) < len(ids):
            twice = sorted({each for each in ids if ids.count(each) > 1})
            raise CommandError(f"Broker list contains duplicate entries: {numbers(twice)}.")
        topics = parse_topics(read_plan(path, "topics"))
        run(lambda client: _generate(client, topics, ids, not disable_rack_aware, output_format))
        return
    plan = parse_assignment(
        read_plan(required(reassignment_json_file, "--reassignment-json-file", action), "partitions")
    )
    match action:
        case "execute":
            run(lambda client: _execute(client, plan, how))
        case "verify":
            run(lambda client: _verify(client, plan, preserve_throttles, output_format))
        case _:
            run(lambda client: _cancel(client, plan, preserve_throttles))


async def _list(client: Client, output_format: Format | None) -> None:
    from parley.tools.cli.reassign.requests import ongoing

    found = sorted((await ongoing(client)).items())
    if output_format:
        rows: list[dict[str, Any]] = [
            {
                "topic": topic,
                "partition": index,
                "replicas": one.replicas,
                "adding": one.adding,
                "removing": one.removing,
            }
            for (topic, index), one in found
        ]
        print_data(rows, output_format)
        return
    print("Current partition reassignments:" if found else "No partition reassignments found.")
    for (topic, index), one in found:
        adding = f" adding: {numbers(one.adding)}." if one.adding else ""
        removing = f" removing: {numbers(one.removing)}." if one.removing else ""
        print(f"{topic}-{index}: replicas: {numbers(one.replicas)}.{adding}{removing}")


async def _generate(
    client: Client, topics: list[str], brokers: list[int], rack_aware: bool, output_format: Format | None
) -> None:
    from random import Random

    from parley.tools.cli.reassign.executing import generate

    _propose(*await generate(client, topics, brokers, rack_aware=rack_aware, rng=Random()), output_format)


def _propose(current: Plan, proposed: Plan, output_format: Format | None) -> None:
    if output_format:
        print_data({"current": as_data(current), "proposed": as_data(proposed)}, output_format)
        return
    print(f"Current partition replica assignment\n{as_json(current)}\n")
    print(f"Proposed partition reassignment configuration\n{as_json(proposed)}")


async def _with_factor(
    client: Client, topics: list[str], factor: int, how: Execution | None, output_format: Format | None
) -> None:
    """Print a plan that gives the topics this number of replicas. Execute it instead unless ``how`` is None."""
    from parley.tools.cli.reassign.executing import generate_with_factor

    current, proposed = await generate_with_factor(client, topics, factor)
    if how is None:
        _propose(current, proposed, output_format)
    else:
        await _execute(client, proposed, how)


async def _execute(client: Client, plan: Plan, how: Execution) -> None:
    from parley.tools.cli.reassign.executing import execute, prepare

    current = await prepare(client, plan, how)
    print(f"Current partition replica assignment\n\n{as_json(current)}\n")
    print("Save this to use as the --reassignment-json-file option during rollback")
    await execute(client, plan, current, how)


async def _verify(client: Client, plan: Plan, preserve_throttles: bool, output_format: Format | None) -> None:
    from parley.tools.cli.reassign import verifying
    from parley.tools.cli.reassign.executing import clear_throttles

    found = await verifying.verify(client, plan)
    if output_format:
        print_data(verifying.as_data(found), output_format)
    else:
        print("Status of partition reassignment:")
        for where, one in found.partitions.items():
            print(verifying.partition_line(where, one))
        for replica, move in found.replicas.items():
            print(verifying.replica_line(replica, move))
        if not found.replicas:
            print()
        for progress in found.progress:
            print(verifying.progress_line(progress), file=sys.stderr)
    if not found.is_ongoing and not preserve_throttles:
        await clear_throttles(client, plan, say=not output_format)


async def _cancel(client: Client, plan: Plan, preserve_throttles: bool) -> None:
    from parley.tools.cli.reassign.executing import cancel, clear_throttles

    partitions, replicas = await cancel(client, plan)
    if partitions:
        plural = "" if len(partitions) == 1 else "s"
        print(f"Successfully cancelled partition reassignment{plural} for: {names_of(partitions)}")
    else:
        print("None of the specified partition reassignments are active.")
    if replicas:
        names = ",".join(f"{topic}-{index}-{broker}" for topic, index, broker in replicas)
        print(f"Successfully cancelled partition move{'' if len(replicas) == 1 else 's'} for: {names}")
    else:
        print("None of the specified partition moves are active.")
    if not preserve_throttles:
        await clear_throttles(client, plan)
