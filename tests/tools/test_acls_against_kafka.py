"""kafka-acls and ``parley acls`` do and print the same on a Parley broker."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from parley import Broker
from tests.support.kafka_tools import output_of_tool
from tests.tools.conftest import Parley

pytestmark = pytest.mark.system

COMMANDS = (
    ("--producer", "--topic", "t", "--transactional-id", "x", "--idempotent", "--allow-principal", "User:alice"),
    ("--consumer", "--topic", "t", "--group", "g", "--allow-principal", "User:CN=a,OU=b", "--allow-host", "10.0.0.1"),
    ("--topic", "p-", "--resource-pattern-type", "prefixed", "--deny-principal", "User:*", "--deny-host", "10.0.0.2"),
    ("--cluster", "--operation", "DescribeConfigs", "--operation", "Alter", "--allow-principal", "User:alice"),
    ("--user-principal", "User:bob", "--operation", "CreateTokens", "--allow-principal", "User:alice"),
    ("--topic", "*", "--group", "*", "--operation", "describe", "--allow-principal", "User:carol"),
)
LISTS = (
    (),
    ("--topic", "t"),
    ("--topic", "p-1", "--resource-pattern-type", "match"),
    ("--topic", "p-", "--resource-pattern-type", "any"),
    ("--principal", "User:alice"),
    ("--cluster",),
)


@pytest.fixture
def secured() -> Iterator[Broker]:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with Broker(authorizer_class_name=authorizer, super_users="User:ANONYMOUS") as broker:
        yield broker


def kafka(broker: Broker, *words: str) -> str:
    return output_of_tool("org.apache.kafka.tools.AclCommand", "--bootstrap-server", broker.bootstrap_servers, *words)


def lines(text: str) -> list[str]:
    """Return the lines of a listing, without the order of resources and entries, which is random in Kafka's tool."""
    return sorted(line.strip() for line in text.splitlines() if line.strip())


def test_kafkas_tool_reads_what_parleys_tool_wrote_and_removes_it(parley: Parley, secured: Broker) -> None:
    at = ("--bootstrap-server", secured.bootstrap_servers)
    for words in COMMANDS:
        done = parley("acls", *at, "--add", *words)
        assert done.code == 0, done.err
        repeated = kafka(secured, "--add", *words)
        assert "already exists" in repeated
        assert "Adding" not in repeated, "it means other ACLs"
    for resource in LISTS:
        ours = parley("acls", *at, "--list", *resource).out
        assert lines(kafka(secured, "--list", *resource)) == lines(ours), resource
    for words in COMMANDS:
        kafka(secured, "--remove", "--force", *words)
    assert parley("acls", *at, "--list").out == ""


def test_parleys_tool_removes_what_kafkas_tool_wrote(parley: Parley, secured: Broker) -> None:
    at = ("--bootstrap-server", secured.bootstrap_servers)
    for words in COMMANDS:
        theirs = re.sub(r"\s+", " ", kafka(secured, "--add", *words))
        assert "Adding ACLs for resource" in theirs
    for words in COMMANDS:
        assert parley("acls", *at, "--remove", "--force", *words).code == 0
    assert kafka(secured, "--list").strip() == ""
