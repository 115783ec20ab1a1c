"""Every option of Kafka's tools exists in Parley's command, or is listed here with the reason why not."""

from __future__ import annotations

import re

import pytest

from parley.tools.cli.docs import help_of
from tests.support.kafka import KAFKA_3, KAFKA_4
from tests.support.kafka_tools import run_tool

pytestmark = pytest.mark.system

TOOLS = "org.apache.kafka.tools."
COMMANDS = {
    "topics": f"{TOOLS}TopicCommand",
    "produce": f"{TOOLS}ConsoleProducer",
    "consume": f"{TOOLS}consumer.ConsoleConsumer",
    "groups": f"{TOOLS}consumer.group.ConsumerGroupCommand",
    "configs": "kafka.admin.ConfigCommand",
    "acls": f"{TOOLS}AclCommand",
    "delegation-tokens": f"{TOOLS}DelegationTokenCommand",
    "offsets": f"{TOOLS}GetOffsetShell",
    "delete-records": f"{TOOLS}DeleteRecordsCommand",
    "dump-log": f"{TOOLS}DumpLogSegments",
    "perf produce": f"{TOOLS}ProducerPerformance",
    "perf consume": f"{TOOLS}ConsumerPerformance",
    "perf latency": f"{TOOLS}EndToEndLatency",
}
"""Parley's commands, and the classes of the corresponding Kafka tools."""

BEFORE_4 = {
    "produce": "kafka.tools.ConsoleProducer",
    "dump-log": "kafka.tools.DumpLogSegments",
    "acls": "kafka.admin.AclCommand",
}
NO_HELP_BEFORE_4 = ("perf latency",)

ABSENT = {
    "topics": {"--delete-config": "has no effect in Kafka since 2.x; parley configs does this"},
    "configs": {
        "--bootstrap-controller": "no broker is only a controller here",
        "--zookeeper": "the store is no business of clients",
        "--zk-tls-config-file": "the store is no business of clients",
    },
    "acls": {
        "--bootstrap-controller": "no broker is only a controller here",
        "--authorizer": "the ACLs are reached through a broker, or before the first start with parley configs",
        "--authorizer-properties": "as --authorizer",
        "--zk-tls-config-file": "as --authorizer",
    },
    "dump-log": {
        "--cluster-metadata-decoder": "there is no __cluster_metadata log",
        "--remote-log-metadata-decoder": "there is no tiered storage",
    },
    "perf consume": {
        "--threads": "has no effect in Kafka 3.9, and is gone in 4",
        "--num-fetch-threads": "has no effect in Kafka 3.9, and is gone in 4",
    },
}
"""The options that Parley omits, and why."""


def options_of(tool: str, version: str) -> set[str]:
    """Return the options in the help text of a Kafka tool, which exits with 1."""
    # EndToEndLatency takes a single word for the first of its positional arguments.
    first = ("--bootstrap-server", "a:1") if "EndToEnd" in tool else ()
    typed = run_tool(tool, *first, "--help", version=version)
    found = set(re.findall(r"^ *(--[a-z](?:[a-z.-]*[a-z])?)(?= |$)", typed.out + typed.err, re.MULTILINE))
    assert "--help" in found or "--topic" in found, typed.err
    return found


def our_options(name: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z.-]*", help_of(*name.split()).partition("Examples:")[0]))


@pytest.mark.parametrize("version", [KAFKA_4, KAFKA_3])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_missing(name: str, version: str) -> None:
    if version == KAFKA_3 and name in NO_HELP_BEFORE_4:
        pytest.skip("this tool had no options then")
    tool = BEFORE_4.get(name, COMMANDS[name]) if version == KAFKA_3 else COMMANDS[name]
    ours = our_options(name)
    theirs = options_of(tool, version)
    assert theirs - ours <= set(ABSENT.get(name, {}))
    assert not ours & set(ABSENT.get(name, {})), "it is not absent any more"


def test_no_option_of_the_share_consumer_is_missing() -> None:
    assert options_of(f"{TOOLS}consumer.ConsoleShareConsumer", KAFKA_4) <= our_options("consume")
