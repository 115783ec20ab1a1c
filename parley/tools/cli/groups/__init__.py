"""``parley groups``: list, describe, reset and delete consumer groups, as kafka-consumer-groups does.

Two differences are intended. The exit code is 1 if part of the work fails, while Kafka's tool prints the error and
exits with 0. Share groups and streams groups can also be listed, described and deleted by name, and are shown in the
tables of Kafka's tools for them.
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
    required,
)
from parley.tools.cli.groups.group_options import ALL, ResetOptions
from parley.tools.cli.groups.option_checks import Needs, check_needs, view_of
from parley.tools.cli.groups.partition_selection import parse_selection
from parley.tools.cli.invocation import FAILED, CommandError

app = App(
    "List, describe, reset and delete consumer groups.\n\n"
    "`--describe` shows offsets and lag unless `--members` or `--state` is given. `--reset-offsets` only shows what it "
    "would do unless `--execute` is given; the group must not have members. `--list`, `--describe` and `--delete` "
    "take groups of all types by name; the internal topics of a deleted streams group stay. `parley share-groups` "
    "and `parley streams-groups` do the rest for their types. `--all-groups` means all classic and consumer groups.",
    examples=[
        ("parley groups --list --state", "all groups with their states"),
        ("parley groups --describe --group readers", "offset, lag and consumer of each partition"),
        (
            "parley groups --reset-offsets --group readers --topic greetings --to-earliest --execute",
            "read the topic again from the beginning",
        ),
        (
            "parley groups --reset-offsets --group readers --all-topics --by-duration PT1H --execute",
            "go back one hour in all topics",
        ),
        ("parley groups --delete --group readers", "delete the group and its offsets"),
    ],
    optional_values={"--state": ALL, "--type": ALL},
)


def _words(text: str) -> list[str]:
    """Split an optional value at its commas. Returns an empty list if the value means all."""
    return [] if text in ("", ALL) else [word.strip() for word in text.split(",") if word.strip()]


@dataclass(frozen=True, slots=True)
class Options(ResetOptions):
    """The options of ``parley groups``, as given on the command line."""

    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    list_: Annotated[bool, typer.Option("--list", help="List the groups.")] = False
    describe: Annotated[bool, typer.Option("--describe", help="Show groups.")] = False
    delete: Annotated[bool, typer.Option("--delete", help="Delete groups without members, with their offsets.")] = False
    delete_offsets: Annotated[
        bool, typer.Option("--delete-offsets", help="Delete the offsets of a group for some topics.")
    ] = False
    reset_offsets: Annotated[
        bool, typer.Option("--reset-offsets", help="Set the offsets of groups without members.")
    ] = False
    validate_regex: Annotated[
        str, typer.Option("--validate-regex", help="Only check that consumers can subscribe to a regular expression.")
    ] = ""
    group: Annotated[list[str], typer.Option("--group", help="The group; repeatable.")] = field(default_factory=list)
    all_groups: Annotated[bool, typer.Option("--all-groups", help="All classic and consumer groups.")] = False
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
    type_: Annotated[
        str,
        typer.Option(
            "--type", help="With --list: show types, or only groups of these types: classic, consumer, share, streams."
        ),
    ] = ""
    verbose: Annotated[bool, typer.Option("--verbose", help="Describe in more detail.")] = False
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the first offset of the partition.")] = (
        False
    )
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to the end of the partition.")] = False
    to_current: Annotated[bool, typer.Option("--to-current", help="Reset to the committed offset of the group.")] = (
        False
    )
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a reset would do.")] = False
    execute: Annotated[bool, typer.Option("--execute", help="Carry out the reset.")] = False
    export: Annotated[bool, typer.Option("--export", help="Show the reset as CSV: topic,partition,offset.")] = False
    timeout: Annotated[int, typer.Option("--timeout", help="How long to wait for the cluster, in ms.")] = 30_000
    command_config: CommandConfig = None
    output_format: OutputFormat = None


@app.only_command_with(Options)
def groups(options: Options) -> None:
    action = options.action(validate_regex=options.validate_regex)
    _check_together(options, action)
    _ACTIONS[action](options)


def _check_together(options: Options, action: str) -> None:
    """Raise ``CommandError`` for options that cannot be combined."""
    check_needs(options, action, _ONLY_WITH)
    if action not in ("list", "validate_regex"):
        if bool(options.group) == bool(options.all_groups):
            raise CommandError("Name either --group or --all-groups.")
        if options.all_groups and action == "delete_offsets":
            raise CommandError("--delete-offsets takes one --group.")


def _validate_regex(options: Options) -> None:
    from parley.tools.cli.groups.listing import validate_regex

    validate_regex(options.validate_regex)


def _list(options: Options) -> None:
    from parley.tools.cli.groups import listing

    found = options.on_cluster(lambda client: listing.list_groups(client, _words(options.state), _words(options.type_)))
    listing.show(
        found, with_type=bool(options.type_), with_state=bool(options.state), output_format=options.output_format
    )


def _describe(options: Options) -> None:
    from parley.tools.cli.groups import every_type

    view = view_of(members=options.members, offsets=options.offsets, state=options.state)
    found = options.on_cluster(
        lambda client: every_type.describe(
            client, options.names(), with_offsets=view == "offsets", timeout_ms=options.timeout
        ),
    )
    if not every_type.show(found, view, verbose=options.verbose, output_format=options.output_format):
        raise typer.Exit(FAILED)


def _delete(options: Options) -> None:
    from parley.tools.cli.groups import deleting

    done = options.on_cluster(
        lambda client: deleting.delete_selected(client, options.names(), timeout_ms=options.timeout)
    )
    deleting.show_groups(done, output_format=options.output_format)


def _delete_offsets(options: Options) -> None:
    from parley.tools.cli.groups import deleting

    if len(options.group) != 1:
        raise CommandError(f"--delete-offsets takes one --group, not {len(options.group)}.")
    (name,) = options.group
    selection = parse_selection(required(options.topic, "--topic", "delete_offsets"))
    forgotten = options.on_cluster(
        lambda client: deleting.delete_consumer_offsets(client, name, selection, timeout_ms=options.timeout)
    )
    deleting.show_offsets(name, forgotten, output_format=options.output_format)


def _reset_offsets(options: Options) -> None:
    from parley.tools.cli.groups import reset

    options.reset(options.topic, options.all_topics, "topic", reset.reset)


_ACTIONS: Final[Mapping[str, Callable[[Options], None]]] = {
    "validate_regex": _validate_regex,
    "list": _list,
    "describe": _describe,
    "delete": _delete,
    "delete_offsets": _delete_offsets,
    "reset_offsets": _reset_offsets,
}
_ONLY_WITH: Final[Needs] = {
    ("describe",): ("members", "offsets", "verbose"),
    ("describe", "list"): ("state",),
    ("list",): ("type_",),
    ("reset_offsets",): ("execute", "dry_run", "export", "from_file"),
}
