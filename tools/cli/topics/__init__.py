"""``parley topics``: create, list, describe, alter and delete topics, as kafka-topics does."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tools.cli.app import App
from tools.cli.cluster import on_cluster
from tools.cli.options import DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, CommandConfig, one_action, required
from tools.cli.running import CommandError, pairs

if TYPE_CHECKING:
    from protocol.client import Client

T = TypeVar("T")

app = App(
    "Create, list, describe, alter and delete topics.\n\n"
    "`--topic` takes a regular expression, except with `--create`. Settings of a topic that exists are changed with "
    "`parley configs`.",
    examples=[
        ("parley topics --create --topic greetings", "one topic with the broker's default number of partitions"),
        ("parley topics --create --topic events --partitions 6 --config retention.ms=86400000", "kept for a day"),
        ("parley topics --describe --topic 'event.*'", "partitions, leaders and replicas of some topics"),
        ("parley topics --list --json", "names for another program"),
    ],
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which topics, and which of their partitions, a description shows."""

    under_replicated: bool = False
    unavailable: bool = False
    under_min_isr: bool = False
    at_min_isr: bool = False
    with_overrides: bool = False

    @property
    def of_partitions(self) -> bool:
        """Whether single partitions are asked for, so that the topics' own lines are left out."""
        return self.under_replicated or self.unavailable or self.under_min_isr or self.at_min_isr


def parse_assignment(text: str) -> list[list[int]]:
    """The brokers of each partition in ``1:2,2:3``: partitions by commas, the replicas of one by colons."""
    try:
        assignment = [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError as error:
        raise CommandError(f"--replica-assignment takes broker ids as in 1:2,2:3, not '{text}'.") from error
    if any(len(set(replicas)) != len(replicas) for replicas in assignment):
        raise CommandError(f"--replica-assignment names a broker twice for one partition: '{text}'.")
    if len({len(replicas) for replicas in assignment}) != 1:
        raise CommandError(f"--replica-assignment gives partitions different numbers of replicas: '{text}'.")
    return assignment


@app.only_command()
def topics(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    create: Annotated[bool, typer.Option("--create", help="Create a topic.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the names of the topics.")] = False,
    describe: Annotated[bool, typer.Option("--describe", help="Show the partitions of topics.")] = False,
    alter: Annotated[bool, typer.Option("--alter", help="Add partitions to topics.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete topics and all their records.")] = False,
    topic: Annotated[str, typer.Option("--topic", help="The topic; a regular expression except with --create.")] = "",
    topic_id: Annotated[str, typer.Option("--topic-id", help="Describe the topic with this id.")] = "",
    partitions: Annotated[
        int | None, typer.Option("--partitions", help="Number of partitions; with --alter more than there are.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", help="How many brokers hold each partition.")
    ] = None,
    replica_assignment: Annotated[
        str, typer.Option("--replica-assignment", help="Brokers of each partition, 1:2,2:3; the leader comes first.")
    ] = "",
    config: Annotated[list[str], typer.Option("--config", help="With --create: a setting key=value; repeatable.")] = [],  # noqa: B006 - typer reads the default, nobody changes it
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="With --create: a topic that is there already is no error.")
    ] = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="With --alter, --delete, --describe: no such topic is no error.")
    ] = False,
    exclude_internal: Annotated[
        bool, typer.Option("--exclude-internal", help="Leave out topics such as __consumer_offsets.")
    ] = False,
    under_replicated_partitions: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Describe only partitions that lack a replica.")
    ] = False,
    unavailable_partitions: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Describe only partitions without a leader.")
    ] = False,
    under_min_isr_partitions: Annotated[
        bool,
        typer.Option(
            "--under-min-isr-partitions", help="Describe only partitions with fewer replicas in sync than they need."
        ),
    ] = False,
    at_min_isr_partitions: Annotated[
        bool,
        typer.Option(
            "--at-min-isr-partitions", help="Describe only partitions with just as many replicas in sync as needed."
        ),
    ] = False,
    topics_with_overrides: Annotated[
        bool, typer.Option("--topics-with-overrides", help="Describe only topics with settings of their own.")
    ] = False,
    partition_size_limit_per_response: Annotated[
        int, typer.Option("--partition-size-limit-per-response", help="Partitions asked for at a time.")
    ] = 2000,
    command_config: CommandConfig = None,
    json_output: AsJson = False,
) -> None:
    from tools.cli.topics import change, describing

    action = one_action(create=create, list=list_, describe=describe, alter=alter, delete=delete)
    if partitions is not None and partitions < 1:
        raise CommandError(f"--partitions must be 1 or more, not {partitions}.")
    if partitions is not None and replica_assignment and action == "create":
        raise CommandError("--replica-assignment says how many partitions there are; leave --partitions out.")
    if config and action != "create":
        raise CommandError("--config goes with --create; `parley configs --alter` changes the settings of a topic.")

    def run(work: Callable[[Client], Awaitable[T]]) -> T:
        return on_cluster(bootstrap_server, command_config, work)

    match action:
        case "create":
            wanted = change.NewTopic(
                required(topic, "--topic", action),
                -1 if partitions is None else partitions,
                -1 if replication_factor is None else replication_factor,
                parse_assignment(replica_assignment) if replica_assignment else None,
                pairs(config, "--config"),
            )
            run(lambda client: change.create(client, wanted, if_not_exists=if_not_exists))
        case "alter":
            to = change.Growth(
                required(partitions, "--partitions", action),
                parse_assignment(replica_assignment) if replica_assignment else None,
            )
            named = required(topic, "--topic", action)
            run(lambda client: change.alter(client, named, to, if_exists=if_exists))
        case "delete":
            named = required(topic, "--topic", action)
            run(lambda client: change.delete(client, named, if_exists=if_exists))
        case "list":
            names = run(lambda client: describing.names(client, topic, exclude_internal=exclude_internal))
            print(json.dumps(names) if json_output else "\n".join(names), end="\n" if names or json_output else "")
        case _:
            shown = Selection(
                under_replicated_partitions,
                unavailable_partitions,
                under_min_isr_partitions,
                at_min_isr_partitions,
                topics_with_overrides,
            )
            request = describing.Wanted(
                topic, topic_id, exclude_internal, if_exists, max(1, partition_size_limit_per_response)
            )
            found = run(lambda client: describing.describe(client, request))
            describing.show(found, shown, as_json=json_output)


__all__ = ["Selection", "app", "parse_assignment", "topics"]
