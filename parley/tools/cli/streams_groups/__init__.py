"""``parley streams-groups``: list, describe, reset and delete streams groups, as kafka-streams-groups does.

One difference is intended: the exit code is 1 if part of the work fails, while Kafka's tool prints the error and exits
with 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    CommandConfig,
    OutputFormat,
)
from parley.tools.cli.groups.group_options import ALL, ResetOptions
from parley.tools.cli.groups.option_checks import Needs, check_needs, view_of
from parley.tools.cli.groups.partition_selection import parse_selection
from parley.tools.cli.invocation import FAILED, CommandError

app = App(
    "List, describe, reset and delete streams groups (KIP-1071).\n\n"
    "`--describe` shows offsets and lag unless `--members` or `--state` is given. `--reset-offsets` only shows what it "
    "would do unless `--execute` is given; the group must not have members.",
    examples=[
        ("parley streams-groups --list --state", "all streams groups with their states"),
        ("parley streams-groups --describe --group counts --members --verbose", "members, epochs and tasks"),
        (
            "parley streams-groups --reset-offsets --group counts --all-input-topics --to-earliest "
            "--delete-all-internal-topics --execute",
            "let the application start again from the beginning, without its state",
        ),
        ("parley streams-groups --delete --group counts", "delete the group and its offsets"),
    ],
    optional_values={"--state": ALL},
)


@dataclass(frozen=True, slots=True)
class Options(ResetOptions):
    """The options of ``parley streams-groups``, as given on the command line."""

    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    list_: Annotated[bool, typer.Option("--list", help="List the streams groups.")] = False
    describe: Annotated[bool, typer.Option("--describe", help="Show streams groups.")] = False
    delete: Annotated[bool, typer.Option("--delete", help="Delete groups without members, with their offsets.")] = False
    delete_offsets: Annotated[
        bool, typer.Option("--delete-offsets", help="Delete the offsets of a group for some input topics.")
    ] = False
    reset_offsets: Annotated[
        bool, typer.Option("--reset-offsets", help="Set the offsets of groups without members.")
    ] = False
    group: Annotated[list[str], typer.Option("--group", help="The group; repeatable.")] = field(default_factory=list)
    all_groups: Annotated[bool, typer.Option("--all-groups", help="All streams groups.")] = False
    input_topic: Annotated[
        list[str],
        typer.Option("--input-topic", help="A topic that the application reads, or topic:0,1; repeatable."),
    ] = field(default_factory=list)
    all_input_topics: Annotated[
        bool, typer.Option("--all-input-topics", help="All topics that the application reads.")
    ] = False
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
    to_current: Annotated[bool, typer.Option("--to-current", help="Reset to the committed offset.")] = False
    to_offset: Annotated[int | None, typer.Option("--to-offset", help="Reset to this offset.")] = None
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="Reset by this number of records: forward, or back if negative.")
    ] = None
    to_datetime: Annotated[
        str,
        typer.Option("--to-datetime", help="Reset to a time: YYYY-MM-DDThh:mm:ss.sss, UTC unless it has an offset."),
    ] = ""
    by_duration: Annotated[str, typer.Option("--by-duration", help="Reset to this long ago: PnDTnHnMnS.")] = ""
    from_file: Annotated[
        Path | None, typer.Option("--from-file", help="Reset to the offsets in a CSV file, as written by --export.")
    ] = None
    delete_internal_topic: Annotated[
        list[str],
        typer.Option("--delete-internal-topic", help="With --execute: delete this internal topic, too; repeatable."),
    ] = field(default_factory=list)
    delete_all_internal_topics: Annotated[
        bool,
        typer.Option("--delete-all-internal-topics", help="With --execute or --delete: delete all internal topics."),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a reset would do.")] = False
    execute: Annotated[bool, typer.Option("--execute", help="Carry out the reset.")] = False
    export: Annotated[bool, typer.Option("--export", help="Show the reset as CSV: topic,partition,offset.")] = False
    timeout: Annotated[int, typer.Option("--timeout", help="How long to wait for the cluster, in ms.")] = 30_000
    command_config: CommandConfig = None
    output_format: OutputFormat = None


@app.only_command_with(Options)
def streams_groups(options: Options) -> None:
    action = options.action()
    _check_together(options, action)
    _ACTIONS[action](options)


def _check_together(options: Options, action: str) -> None:
    """Raise ``CommandError`` for options that cannot be combined."""
    check_needs(options, action, _ONLY_WITH)
    if action != "list" and bool(options.group) == options.all_groups:
        raise CommandError("Name either --group or --all-groups.")
    if action == "delete_offsets" and len(options.group) != 1:
        raise CommandError(f"--delete-offsets takes one --group, not {len(options.group)}.")
    if options.delete_internal_topic and options.delete_all_internal_topics:
        raise CommandError("Use --delete-internal-topic or --delete-all-internal-topics, not both.")


def _list(options: Options) -> None:
    from parley.tools.cli.share_groups.tables import show_list
    from parley.tools.cli.streams_groups import describing

    states = [word.strip() for word in options.state.split(",") if word.strip() not in ("", ALL)]
    found = options.on_cluster(lambda client: describing.list_streams_groups(client, states))
    show_list(found, with_state=bool(options.state), output_format=options.output_format)


def _describe(options: Options) -> None:
    from parley.tools.cli.streams_groups import describing, tables

    view = view_of(members=options.members, offsets=options.offsets, state=options.state)
    found = options.on_cluster(
        lambda client: describing.describe(
            client, options.names(), with_offsets=view == "offsets", timeout_ms=options.timeout
        ),
    )
    if not tables.show(found, view, verbose=options.verbose, output_format=options.output_format):
        raise typer.Exit(FAILED)


def _delete(options: Options) -> None:
    from parley.tools.cli.streams_groups import changing

    internal = changing.InternalTopics(all=options.delete_all_internal_topics)
    done = options.on_cluster(
        lambda client: changing.delete_groups(client, options.names(), internal, timeout_ms=options.timeout)
    )
    changing.show_deleted(done, output_format=options.output_format)


def _delete_offsets(options: Options) -> None:
    from parley.tools.cli.groups import deleting
    from parley.tools.cli.streams_groups import changing

    if bool(options.input_topic) == options.all_input_topics:
        raise CommandError("Name either --input-topic or --all-input-topics.")
    (name,) = options.group
    selection = parse_selection(options.input_topic)
    forgotten = options.on_cluster(
        lambda client: changing.delete_offsets(client, name, selection, timeout_ms=options.timeout)
    )
    deleting.show_offsets(name, forgotten, output_format=options.output_format)


def _reset_offsets(options: Options) -> None:
    from parley.tools.cli.streams_groups import changing

    internal = changing.InternalTopics(tuple(options.delete_internal_topic), options.delete_all_internal_topics)
    options.reset(
        options.input_topic,
        options.all_input_topics,
        "input-topic",
        lambda client, plan: changing.reset(client, plan, internal),
    )


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
    ("reset_offsets",): ("execute", "dry_run", "export", "from_file", "delete_internal_topic"),
    ("reset_offsets", "delete"): ("delete_all_internal_topics",),
    ("reset_offsets", "delete_offsets"): ("input_topic", "all_input_topics"),
}
