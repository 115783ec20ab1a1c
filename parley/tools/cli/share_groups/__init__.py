"""``parley share-groups``: list, describe, reset and delete share groups, as kafka-share-groups does.

One difference is intended: the exit code is 1 if part of the work fails, while Kafka's tool prints the error and exits
with 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    CommandConfig,
    OutputFormat,
    required,
)
from parley.tools.cli.groups.group_options import ALL, GroupOptions
from parley.tools.cli.groups.option_checks import Needs, check_needs, view_of
from parley.tools.cli.groups.partition_selection import parse_selection
from parley.tools.cli.invocation import FAILED, CommandError

app = App(
    "List, describe, reset and delete share groups (KIP-932).\n\n"
    "`--describe` shows offsets and lag unless `--members` or `--state` is given. `--reset-offsets` needs `--dry-run` "
    "or `--execute`; the group must not have members.",
    examples=[
        ("parley share-groups --list --state", "all share groups with their states"),
        ("parley share-groups --describe --group jobs", "where the group continues, and its lag"),
        (
            "parley share-groups --reset-offsets --group jobs --topic work --to-earliest --execute",
            "deliver the records of the topic again",
        ),
        ("parley share-groups --delete --group jobs", "delete the group and its offsets"),
    ],
    optional_values={"--state": ALL},
)


@dataclass(frozen=True, slots=True)
class Options(GroupOptions):
    """The options of ``parley share-groups``, as given on the command line."""

    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    list_: Annotated[bool, typer.Option("--list", help="List the share groups.")] = False
    describe: Annotated[bool, typer.Option("--describe", help="Show share groups.")] = False
    delete: Annotated[bool, typer.Option("--delete", help="Delete groups without members, with their offsets.")] = False
    delete_offsets: Annotated[
        bool, typer.Option("--delete-offsets", help="Delete the offsets of a group for some topics.")
    ] = False
    reset_offsets: Annotated[
        bool, typer.Option("--reset-offsets", help="Set the offsets of a group without members.")
    ] = False
    group: Annotated[list[str], typer.Option("--group", help="The group; repeatable.")] = field(default_factory=list)
    all_groups: Annotated[bool, typer.Option("--all-groups", help="All share groups.")] = False
    topic: Annotated[
        list[str], typer.Option("--topic", help="A topic, or some of its partitions as topic:0,1; repeatable.")
    ] = field(default_factory=list)
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All topics the group has offsets for.")] = False
    members: Annotated[bool, typer.Option("--members", help="Describe the members.")] = False
    offsets: Annotated[bool, typer.Option("--offsets", help="Describe the offsets; this is the default.")] = False
    state: Annotated[
        str,
        typer.Option("--state", help="Describe the state; with --list, show states, or only groups in these states."),
    ] = ""
    verbose: Annotated[bool, typer.Option("--verbose", help="Describe in more detail.")] = False
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the first offset of the partition.")] = (
        False
    )
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to the end of the partition.")] = False
    to_datetime: Annotated[
        str,
        typer.Option("--to-datetime", help="Reset to a time: YYYY-MM-DDThh:mm:ss.sss, UTC unless it has an offset."),
    ] = ""
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a reset would do.")] = False
    execute: Annotated[bool, typer.Option("--execute", help="Carry out the reset.")] = False
    timeout: Annotated[int, typer.Option("--timeout", help="How long to wait for the cluster, in ms.")] = 30_000
    command_config: CommandConfig = None
    output_format: OutputFormat = None


@app.only_command_with(Options)
def share_groups(options: Options) -> None:
    action = options.action()
    _check_together(options, action)
    _ACTIONS[action](options)


def _check_together(options: Options, action: str) -> None:
    """Raise ``CommandError`` for options that cannot be combined."""
    check_needs(options, action, _ONLY_WITH)
    if action in ("describe", "delete") and bool(options.group) == options.all_groups:
        raise CommandError("Name either --group or --all-groups.")
    if action in ("delete_offsets", "reset_offsets") and len(options.group) != 1:
        raise CommandError(f"--{action.replace('_', '-')} takes one --group, not {len(options.group)}.")


def _list(options: Options) -> None:
    from parley.tools.cli.share_groups import describing, tables

    states = [word.strip() for word in options.state.split(",") if word.strip() not in ("", ALL)]
    found = options.on_cluster(lambda client: describing.list_share_groups(client, states))
    tables.show_list(found, with_state=bool(options.state), output_format=options.output_format)


def _describe(options: Options) -> None:
    from parley.tools.cli.share_groups import describing, tables

    view = view_of(members=options.members, offsets=options.offsets, state=options.state)
    found = options.on_cluster(lambda client: describing.describe(client, options.names(), timeout_ms=options.timeout))
    if not tables.show(found, view, verbose=options.verbose, output_format=options.output_format):
        raise typer.Exit(FAILED)


def _delete(options: Options) -> None:
    from parley.tools.cli.share_groups import changing

    done = options.on_cluster(
        lambda client: changing.delete_groups(client, options.names(), timeout_ms=options.timeout)
    )
    changing.show_deleted(done, output_format=options.output_format)


def _delete_offsets(options: Options) -> None:
    from parley.tools.cli.share_groups import changing

    topics = required(options.topic, "--topic", "delete_offsets")
    (name,) = options.group
    outcomes = options.on_cluster(
        lambda client: changing.delete_offsets(client, name, topics, timeout_ms=options.timeout)
    )
    changing.show_topics(outcomes, output_format=options.output_format)


def _reset_offsets(options: Options) -> None:
    from parley.tools.cli.groups import reset
    from parley.tools.cli.share_groups import changing

    if options.execute == options.dry_run:
        raise CommandError("--reset-offsets takes --dry-run or --execute.")
    if bool(options.topic) == options.all_topics:
        raise CommandError("Name either --topic or --all-topics.")
    targets = ("to_earliest", "to_latest", "to_datetime")
    target = reset.target(**{name: getattr(options, name) for name in targets})
    plan = reset.Plan(target, tuple(options.group), parse_selection(options.topic), options.execute, options.timeout)
    result = options.on_cluster(lambda client: changing.reset(client, plan))
    reset.show([result], as_csv=False, output_format=options.output_format)


_ACTIONS: Final[Mapping[str, Callable[[Options], None]]] = {
    "list": _list,
    "describe": _describe,
    "delete": _delete,
    "delete_offsets": _delete_offsets,
    "reset_offsets": _reset_offsets,
}
_ONLY_WITH: Final[Needs] = {
    ("describe",): ("members", "offsets", "verbose"),
    ("describe", "list"): ("state",),
    ("reset_offsets",): ("execute", "dry_run", "all_topics", "to_earliest", "to_latest", "to_datetime"),
    ("reset_offsets", "delete_offsets"): ("topic",),
}
