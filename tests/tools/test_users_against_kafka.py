"""kafka-configs and kafka-delegation-tokens change users, quotas and tokens of a Parley broker."""

from __future__ import annotations

import json

import pytest

from tests.support.kafka_tools import output_of_tool
from tests.tools.conftest import Parley

pytestmark = pytest.mark.system


def test_kafkas_tool_sets_and_deletes_a_scram_user(parley: Parley, alice: tuple[str, ...]) -> None:
    user = ("--alter", "--entity-type", "users", "--entity-name", "bob")
    done = output_of_tool(
        "kafka.admin.ConfigCommand", *alice, *user, "--add-config", "SCRAM-SHA-512=[iterations=8192,password=b]"
    )
    assert "Completed updating config for user bob." in done
    (bob,) = json.loads(parley("configs", *alice, "--describe", "--user", "bob", "--json").out)
    assert [(one["name"], one["value"]) for one in bob["configs"]] == [("SCRAM-SHA-512", "iterations=8192")]
    output_of_tool("kafka.admin.ConfigCommand", *alice, *user, "--delete-config", "SCRAM-SHA-512")
    assert parley("configs", *alice, "--describe", "--user", "bob").code == 1


def test_kafkas_tool_and_parleys_see_the_same_quotas(parley: Parley, alice: tuple[str, ...]) -> None:
    pair = ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "app")
    done = output_of_tool(
        "kafka.admin.ConfigCommand", *alice, "--alter", *pair, "--add-config", "producer_byte_rate=1024"
    )
    assert "Completed updating default config for users in the cluster." in done
    ips = ("--entity-type", "ips", "--entity-name", "127.0.0.2")
    output_of_tool("kafka.admin.ConfigCommand", *alice, "--alter", *ips, "--add-config", "connection_creation_rate=5")
    for words in (pair, ips, ("--entity-type", "users", "--entity-type", "clients")):
        theirs = output_of_tool("kafka.admin.ConfigCommand", *alice, "--describe", *words)
        assert theirs.splitlines() == parley("configs", *alice, "--describe", *words).lines
    output_of_tool("kafka.admin.ConfigCommand", *alice, "--alter", *pair, "--delete-config", "producer_byte_rate")
    assert parley("configs", *alice, "--describe", *pair).code == 1


def test_kafkas_tool_and_parleys_see_the_same_tokens(parley: Parley, alice: tuple[str, ...]) -> None:
    tool = "org.apache.kafka.tools.DelegationTokenCommand"
    created = output_of_tool(
        tool, *alice, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"
    )
    (token,) = json.loads(parley("delegation-tokens", *alice, "--describe", "--json").out)
    assert token["tokenId"] in created
    assert token["hmac"] in created
    assert (token["owner"], token["renewers"]) == ("User:alice", ["User:bob"])
    # Without an owner, Kafka's tool sends an empty list of owners, and a broker returns no tokens.
    shown = output_of_tool(tool, *alice, "--describe", "--owner-principal", "User:alice")
    assert token["hmac"] in shown
    output_of_tool(tool, *alice, "--renew", "--renew-time-period", "-1", "--hmac", token["hmac"])
    output_of_tool(tool, *alice, "--expire", "--expiry-time-period", "-1", "--hmac", token["hmac"])
    assert json.loads(parley("delegation-tokens", *alice, "--describe", "--json").out) == []
