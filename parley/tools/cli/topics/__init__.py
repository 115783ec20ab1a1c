"""``parley topics``: create, list, describe, alter and delete topics, as kafka-topics does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    CommandConfig,
    OutputFormat,
    one_action,
    required,
)
from parley.tools.cli.invocation import CommandError, pairs
from parley.tools.cli.output import print_data
from parley.tools.cli.topics.selection import Selection

if TYPE_CHECKING:
    from parley.protocol.client import Client
    from parley.tools.cli.topics.describing import Wanted

app = App(
    "Create, list, describe, alter and delete topics.\n\n"
    "`--topic` takes a regular expression, except with `--create`. `parley configs` changes the settings of an "
    "existing topic.",
    examples=[
        ("parley topics --create --topic greetings", "a topic with the default number of partitions"),
        (
            "parley topics --create --topic events --partitions 6 --config retention.ms=86400000",
            "six partitions, records kept for a day",
        ),
        ("parley topics --describe --topic 'event.*'", "partitions, leaders and replicas of some topics"),
        ("parley topics --list --json", "the names as JSON"),
    ],
)


def parse_assignment(text: str) -> list[list[int]]:
    """Parse ``1:2,2:3``: commas separate partitions, and colons separate the replicas of a partition.

    Raises ``CommandError`` for any other format.
    """
    try:
        assignment = [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError as error:
        raise CommandError(f"--replica-assignment takes broker ids such as 1:2,2:3, not '{text}'.") from error
    if any(len(set(replicas)) != len(replicas) for replicas in assignment):
        raise CommandError(f"--replica-assignment names a broker twice for one partition: '{text}'.")
    if len({len(replicas) for replicas in assignment}) != 1:
        raise CommandError(f"--replica-assignment gives partitions different numbers of replicas: '{text}'.")
    return assignment


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley topics``, as given on the command line."""

    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    create: Annotated[bool, typer.Option("--create", help="Create a topic.")] = False
    list_: Annotated[bool, typer.Option("--list", help="List the names of the topics.")] = False
    describe: Annotated[bool, typer.Option("--describe", help="Show the partitions of topics.")] = False
    alter: Annotated[bool, typer.Option("--alter", help="Add partitions to topics.")] = False
    delete: Annotated[bool, typer.Option("--delete", help="Delete topics and all their records.")] = False
    topic: Annotated[str, typer.Option("--topic", help="The topic; a regular expression except with --create.")] = ""
    topic_id: Annotated[str, typer.Option("--topic-id", help="Describe the topic with this id.")] = ""
    partitions: Annotated[
        int | None, typer.Option("--partitions", help="Number of partitions; with --alter, more than the topic has.")
    ] = None
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", help="Number of replicas of each partition.")
    ] = None
    replica_assignment: Annotated[
        str,
        typer.Option(
            "--replica-assignment", help="Replicas of each partition, such as 1:2,2:3; the preferred leader first."
        ),
    ] = ""
    config: Annotated[list[str], typer.Option("--config", help="With --create: a setting key=value; repeatable.")] = (
        field(default_factory=list)
    )
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="With --create: do not fail if the topic exists.")
    ] = False
    if_exists: Annotated[
        bool,
        typer.Option(
            "--if-exists", help="With --alter, --delete, --describe: do not fail if the topic does not exist."
        ),
    ] = False
    exclude_internal: Annotated[
        bool, typer.Option("--exclude-internal", help="Leave out topics such as __consumer_offsets.")
    ] = False
    under_replicated_partitions: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Describe only partitions with replicas out of sync.")
    ] = False
    unavailable_partitions: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Describe only partitions without a leader.")
    ] = False
    under_min_isr_partitions: Annotated[
        bool,
        typer.Option(
            "--under-min-isr-partitions",
            help="Describe only partitions with fewer in-sync replicas than min.insync.replicas.",
        ),
    ] = False
    at_min_isr_partitions: Annotated[
        bool,
        typer.Option(
            "--at-min-isr-partitions",
            help="Describe only partitions with exactly min.insync.replicas in-sync replicas.",
        ),
    ] = False
    topics_with_overrides: Annotated[
        bool,
        typer.Option(
            "--topics-with-overrides", help="Describe only topics with settings that differ from the defaults."
        ),
    ] = False
    partition_size_limit_per_response: Annotated[
        int, typer.Option("--partition-size-limit-per-response", help="Maximum number of partitions per response.")
    ] = 2000
    command_config: CommandConfig = None
    output_format: OutputFormat = None


@app.only_command_with(Options)
def topics(options: Options) -> None:
    action = one_action(
        create=options.create, list=options.list_, describe=options.describe, alter=options.alter, delete=options.delete
    )
    check_together(options, action)
    if options.partitions is not None and options.partitions < 1:
        raise CommandError(f"--partitions must be 1 or more, not {options.partitions}.")
    on_cluster(options.bootstrap_server, options.command_config, _work(options, action))


_ONLY_WITH: Final[Mapping[str, tuple[str, ...]]] = {
    "config": ("create",),
    "partitions": ("create", "alter"),
    "replication_factor": ("create",),
    "replica_assignment": ("create", "alter"),
    "under_replicated_partitions": ("describe",),
    "unavailable_partitions": ("describe",),
    "under_min_isr_partitions": ("describe",),
    "at_min_isr_partitions": ("describe",),
    "topics_with_overrides": ("describe",),
    "if_exists": ("alter", "delete", "describe"),
    "if_not_exists": ("create",),
    "exclude_internal": ("list", "describe"),
    "topic_id": ("describe",),
}
"""The actions that each of these options requires."""


def check_together(options: Options, action: str) -> None:
    """Raise ``CommandError`` for options that cannot be combined, with the messages of kafka-topics."""
    given = {name for name in _ONLY_WITH if getattr(options, name) not in (None, "", False, [])}
    for name in sorted(given):
        if action not in _ONLY_WITH[name]:
            hint = " (`parley configs --alter` changes the settings of a topic)" if name == "config" else ""
            raise CommandError(f'Option "[{_flag(name)}]" can\'t be used with option "[{action}]"{hint}')
    excluded = [("topics_with_overrides", name) for name in sorted(given) if name.endswith("_partitions")]
    if action == "create":
        excluded += [("replica_assignment", "partitions"), ("replica_assignment", "replication_factor")]
    for one, other in excluded:
        if one in given and other in given:
            raise CommandError(f'Option "[{_flag(one)}]" can\'t be used with option "[{_flag(other)}]"')


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _work(options: Options, action: str) -> Callable[[Client], Awaitable[None]]:
    """Return the function that performs the action. Raises ``CommandError`` if an option is missing or malformed."""
    from parley.tools.cli.topics import changing, describing

    assignment = parse_assignment(options.replica_assignment) if options.replica_assignment else None
    if action in ("create", "alter", "delete"):
        required(options.topic, "--topic", action)
    match action:
        case "create":
            wanted = changing.NewTopic(
                options.topic,
                options.partitions or -1,
                _count(options.replication_factor),
                assignment,
                pairs(options.config, "--config"),
            )
            return lambda client: changing.create(client, wanted, if_not_exists=options.if_not_exists)
        case "alter":
            to = changing.Growth(required(options.partitions, "--partitions", action), assignment)
            return lambda client: changing.alter(client, options.topic, to, if_exists=options.if_exists)
        case "delete":
            return lambda client: changing.delete(client, options.topic, if_exists=options.if_exists)
        case "list":
            return lambda client: _list(client, options)
        case _:
            request = describing.Wanted(
                options.topic,
                options.topic_id,
                options.exclude_internal,
                options.if_exists,
                max(1, options.partition_size_limit_per_response),
            )
            return lambda client: _describe(client, request, options)


def _count(given: int | None) -> int:
    """Return the number for the request, or -1 (the broker's default) if no number is given."""
    return -1 if given is None else given


async def _list(client: Client, options: Options) -> None:
    from parley.tools.cli.topics import describing

    names = await describing.names(client, options.topic, exclude_internal=options.exclude_internal)
    if options.output_format:
        print_data(names, options.output_format)
    elif names:
        print("\n".join(names))


async def _describe(client: Client, request: Wanted, options: Options) -> None:
    from parley.tools.cli.topics import describing

    shown = Selection(
        options.under_replicated_partitions,
        options.unavailable_partitions,
        options.under_min_isr_partitions,
        options.at_min_isr_partitions,
        options.topics_with_overrides,
    )
    describing.show(await describing.describe(client, request), shown, output_format=options.output_format)


__all__ = ["Selection", "app", "parse_assignment", "topics"]
