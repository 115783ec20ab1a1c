"""``parley log-dirs``: what lies in the brokers' log directories, as kafka-log-dirs does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.cluster import describe as describe_cluster
from parley.tools.cli.cluster_client import check, on_cluster
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, CommandConfig, OnlyBootstrapServer, broker_ids
from parley.tools.cli.invocation import CommandError

if TYPE_CHECKING:
    from parley.protocol.client import Client

app = App(
    "Show the log directories of brokers and the size of each partition in them, as JSON.",
    examples=[
        ("parley log-dirs --describe", "all partitions on all brokers"),
        ("parley log-dirs --describe --broker-list 1,2 --topic-list greetings --json", "only JSON, for a program"),
    ],
)

VERSION: Final = 1


async def directories(
    client: Client, brokers: Sequence[int], topics: Sequence[str]
) -> tuple[list[int], dict[int, list[Any]]]:
    """The brokers there are and what each of those asked for (none: all) says of its directories.

    Topics that are not named are left out, none named means all. Raises :class:`CommandError`.
    """
    from parley.protocol.messages.log_dirs import DescribeLogDirsRequest

    present = sorted(broker.broker_id for broker in (await describe_cluster(client, fenced=False)).brokers)
    missing = [broker for broker in brokers if broker not in present]
    if missing:
        raise CommandError(
            f"The given brokers do not exist from --broker-list: {_numbers(missing)}. "
            f"Current existent brokers: {_numbers(present)}"
        )
    found = {}
    for broker in brokers or present:
        answer = await client.send(DescribeLogDirsRequest(topics=None), node=broker)
        check(answer.error_code, doing=f"Broker {broker}")
        found[broker] = answer.results
    return present, {broker: [_only(directory, topics) for directory in each] for broker, each in found.items()}


def _only(directory: Any, topics: Sequence[str]) -> Any:
    if topics:
        directory.topics = [topic for topic in directory.topics if topic.name in topics]
    return directory


def as_data(found: Mapping[int, Sequence[Any]]) -> dict[str, object]:
    """In the form of kafka-log-dirs."""
    return {
        "brokers": [
            {"broker": broker, "logDirs": [_directory(one) for one in each]} for broker, each in sorted(found.items())
        ],
        "version": VERSION,
    }


def _directory(directory: Any) -> dict[str, object]:
    return {
        "partitions": [
            {
                "partition": f"{topic.name}-{one.partition_index}",
                "size": one.partition_size,
                "offsetLag": one.offset_lag,
                "isFuture": one.is_future_key,
            }
            for topic in directory.topics
            for one in topic.partitions
        ],
        "error": _error(directory.error_code),
        "logDir": directory.log_dir,
    }


def _error(code: int) -> str | None:
    from parley.protocol.errors import ErrorCode

    return ErrorCode(code).name if code else None


def _numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


@app.only_command()
def log_dirs(
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    describe: Annotated[bool, typer.Option("--describe", help="Describe the log directories.")] = False,
    broker_list: Annotated[
        str, typer.Option("--broker-list", help="The brokers to ask, as 0,1,2; all unless given.")
    ] = "",
    topic_list: Annotated[
        str, typer.Option("--topic-list", help="The topics to show, as foo,bar; all unless given.")
    ] = "",
    command_config: CommandConfig = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print nothing but the JSON, without Kafka's lines before it.")
    ] = False,
) -> None:
    if not describe:
        raise CommandError("Name what to do: --describe.")
    brokers = list(dict.fromkeys(broker_ids(broker_list, "--broker-list")))
    topics = [topic.strip() for topic in topic_list.split(",") if topic.strip()]
    _, found = on_cluster(bootstrap_server, command_config, lambda client: directories(client, brokers, topics))
    if not json_output:
        print("Querying brokers for log directories information")
        print(f"Received log directory information from brokers {_numbers(sorted(found))}")
    print(json.dumps(as_data(found), separators=(",", ":")))
