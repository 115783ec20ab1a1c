"""``parley groups``: list, describe, reset and delete consumer groups, as kafka-consumer-groups does.

One difference is meant: where something was not done, the exit code is 1, while Kafka's tool prints the error and exits
with 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tools.cli.app import App
from tools.cli.cluster import on_cluster
from tools.cli.groups.scope import parse_scope
from tools.cli.options import DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, CommandConfig, one_action, required
from tools.cli.running import FAILED, CommandError

if TYPE_CHECKING:
    from tools.cli.groups.reset import Target

app = App(
    "List, describe, reset and delete consumer groups.\n\n"
    "`--describe` shows offsets and lag unless `--members` or `--state` is given. `--reset-offsets` only shows what it "
    "would do until `--execute` is given, and wants a group without members.",
    examples=[
        ("parley groups --list --state", "all groups with their states"),
        ("parley groups --describe --group readers", "how far each partition is read, and by whom"),
        (
            "parley groups --reset-offsets --group readers --topic greetings --to-earliest --execute",
            "reads it all again",
        ),
        (
            "parley groups --reset-offsets --group readers --all-topics --by-duration PT1H --execute",
            "goes an hour back",
        ),
        ("parley groups --delete --group readers", "forgets the group and its offsets"),
    ],
    optional_values={"--state": "*", "--type": "*"},
)

_ALL = "*"


def _words(text: str) -> list[str]:
    """The words of an optional value by commas; none where it stands for all."""
    return [] if text in ("", _ALL) else [word.strip() for word in text.split(",") if word.strip()]


def _only_with(action: str, *, needed: str, **options: object) -> None:
    """Raise :class:`CommandError` for an option that goes with another action."""
    if action != needed:
        for name, given in options.items():
            if given:
                raise CommandError(f"--{name.replace('_', '-')} goes with --{needed.replace('_', '-')}.")


@app.only_command()
def groups(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    list_: Annotated[bool, typer.Option("--list", help="List the groups.")] = False,
    describe: Annotated[bool, typer.Option("--describe", help="Show groups.")] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete groups without members, with their offsets.")
    ] = False,
    delete_offsets: Annotated[
        bool, typer.Option("--delete-offsets", help="Forget the offsets of a group for some topics.")
    ] = False,
    reset_offsets: Annotated[
        bool, typer.Option("--reset-offsets", help="Set the offsets of groups without members.")
    ] = False,
    validate_regex: Annotated[
        str, typer.Option("--validate-regex", help="Only say whether a regular expression can be subscribed to.")
    ] = "",
    group: Annotated[list[str], typer.Option("--group", help="The group; repeatable.")] = [],  # noqa: B006 - unchanged
    all_groups: Annotated[bool, typer.Option("--all-groups", help="All groups.")] = False,
    topic: Annotated[
        list[str], typer.Option("--topic", help="A topic, or some of its partitions as topic:0,1; repeatable.")
    ] = [],  # noqa: B006
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All topics the group has offsets for.")] = False,
    members: Annotated[bool, typer.Option("--members", help="Describe the members.")] = False,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Describe the offsets; this is what is shown anyway.")
    ] = False,
    state: Annotated[
        str, typer.Option("--state", help="Describe the state; with --list, show states, or only groups in these.")
    ] = "",
    type_: Annotated[
        str, typer.Option("--type", help="With --list: show types, or only groups of these: classic, consumer.")
    ] = "",
    verbose: Annotated[bool, typer.Option("--verbose", help="Describe in more detail.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to where the partition begins.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to where the partition ends.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="Reset to the offset the group has.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", help="Reset to this offset.")] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by", help="Reset by so many records on, or back.")] = None,
    to_datetime: Annotated[
        str,
        typer.Option("--to-datetime", help="Reset to a time: YYYY-MM-DDThh:mm:ss.sss, UTC unless it has an offset."),
    ] = "",
    by_duration: Annotated[str, typer.Option("--by-duration", help="Reset to so long ago: PnDTnHnMnS.")] = "",
    from_file: Annotated[
        Path | None, typer.Option("--from-file", help="Reset to the offsets of a CSV file, as --export writes it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a reset would do.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do the reset.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Show the reset as CSV: topic,partition,offset.")] = False,
    timeout: Annotated[int, typer.Option("--timeout", help="How long to wait for the cluster, in ms.")] = 30_000,
    command_config: CommandConfig = None,
    json_output: AsJson = False,
) -> None:
    from tools.cli.groups import deleting, describing, listing, reset

    action = one_action(
        list=list_,
        describe=describe,
        delete=delete,
        delete_offsets=delete_offsets,
        reset_offsets=reset_offsets,
        validate_regex=validate_regex,
    )
    _only_with(action, needed="describe", members=members, offsets=offsets, verbose=verbose)
    _only_with(action, needed="list", type=type_)
    _only_with(action, needed="reset_offsets", execute=execute, dry_run=dry_run, export=export, from_file=from_file)
    if action not in ("list", "validate_regex"):
        if bool(group) == bool(all_groups):
            raise CommandError("Name either --group or --all-groups.")
        if all_groups and action == "delete_offsets":
            raise CommandError("--delete-offsets takes one --group.")
    if action == "describe" and sum((members, offsets, bool(state))) > 1:
        raise CommandError("Use one of --members, --offsets and --state.")

    if action == "validate_regex":
        listing.validate_regex(validate_regex)
    elif action == "list":
        listed = on_cluster(
            bootstrap_server,
            command_config,
            lambda client: listing.list_groups(client, _words(state), _words(type_)),
            timeout_ms=timeout,
        )
        listing.show(listed, with_type=bool(type_), with_state=bool(state), as_json=json_output)
    elif action == "describe":
        view = "members" if members else "state" if state else "offsets"
        described = on_cluster(
            bootstrap_server,
            command_config,
            lambda client: describing.describe(client, None if all_groups else group, timeout_ms=timeout),
            timeout_ms=timeout,
        )
        if not describing.show(described, view, verbose=verbose, as_json=json_output):
            raise typer.Exit(FAILED)
    elif action == "delete":
        done = on_cluster(
            bootstrap_server,
            command_config,
            lambda client: deleting.delete_groups(client, None if all_groups else group, timeout_ms=timeout),
            timeout_ms=timeout,
        )
        deleting.show_groups(done, as_json=json_output)
    elif action == "delete_offsets":
        (name,) = group if len(group) == 1 else _one_group(group)
        scope = parse_scope(required(topic, "--topic", action))
        forgotten = on_cluster(
            bootstrap_server,
            command_config,
            lambda client: deleting.delete_offsets(client, name, scope, timeout_ms=timeout),
            timeout_ms=timeout,
        )
        deleting.show_offsets(name, forgotten, as_json=json_output)
    else:
        if execute and dry_run:
            raise CommandError("Use --dry-run or --execute, not both.")
        target: Target = reset.target(
            to_earliest=to_earliest,
            to_latest=to_latest,
            to_current=to_current,
            to_offset=to_offset,
            shift_by=shift_by,
            to_datetime=to_datetime,
            by_duration=by_duration,
            from_file=from_file,
        )
        if target.kind != "from_file" and bool(topic) == all_topics:
            raise CommandError("Name either --topic or --all-topics.")
        plan = reset.Plan(target, None if all_groups else tuple(group), parse_scope(topic), execute, timeout)
        if not execute and not dry_run and not export:
            reset.warn_dry_run()
        results = on_cluster(
            bootstrap_server, command_config, lambda client: reset.reset(client, plan), timeout_ms=timeout
        )
        reset.show(results, as_csv=export, as_json=json_output)
        if any(result.error for result in results):
            raise typer.Exit(FAILED)


def _one_group(names: list[str]) -> tuple[str]:
    raise CommandError(f"--delete-offsets takes one --group, not {len(names)}.")
