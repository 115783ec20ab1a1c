"""kafka-configs and kafka-delegation-tokens change users, quotas and tokens of a Parley broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley import Broker
from tests.support.kafka_tools import output_of_tool
from tests.tools.conftest import Parley

pytestmark = pytest.mark.system

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture
def secured() -> Iterator[Broker]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,USERS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": f'{MODULE} user_alice="a";',
        "delegation.token.secret.key": "the key",
    }
    with Broker(settings) as broker:
        yield broker


@pytest.fixture
def at(secured: Broker, tmp_path: Path) -> tuple[str, ...]:
    """The options of a client that has logged in."""
    (address,) = (f"{each.host}:{each.port}" for each in secured.server.endpoints if each.listener == "USERS")
    config = tmp_path / "alice.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={MODULE} username="alice" password="a";\n'
    )
    return "--bootstrap-server", address, "--command-config", str(config)


def test_kafkas_tool_sets_and_deletes_a_scram_user(parley: Parley, at: tuple[str, ...]) -> None:
    user = ("--alter", "--entity-type", "users", "--entity-name", "bob")
    done = output_of_tool(
        "kafka.admin.ConfigCommand", *at, *user, "--add-config", "SCRAM-SHA-512=[iterations=8192,password=b]"
    )
    assert "Completed updating config for user bob." in done
    (bob,) = json.loads(parley("configs", *at, "--describe", "--user", "bob", "--json").out)
    assert [(one["name"], one["value"]) for one in bob["configs"]] == [("SCRAM-SHA-512", "iterations=8192")]
    output_of_tool("kafka.admin.ConfigCommand", *at, *user, "--delete-config", "SCRAM-SHA-512")
    assert parley("configs", *at, "--describe", "--user", "bob").code == 1


def test_kafkas_tool_and_parleys_see_the_same_quotas(parley: Parley, at: tuple[str, ...]) -> None:
    pair = ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "app")
    done = output_of_tool("kafka.admin.ConfigCommand", *at, "--alter", *pair, "--add-config", "producer_byte_rate=1024")
    assert "Completed updating default config for users in the cluster." in done
    ips = ("--entity-type", "ips", "--entity-name", "127.0.0.2")
    output_of_tool("kafka.admin.ConfigCommand", *at, "--alter", *ips, "--add-config", "connection_creation_rate=5")
    for words in (pair, ips, ("--entity-type", "users", "--entity-type", "clients")):
        theirs = output_of_tool("kafka.admin.ConfigCommand", *at, "--describe", *words)
        assert theirs.splitlines() == parley("configs", *at, "--describe", *words).lines
    output_of_tool("kafka.admin.ConfigCommand", *at, "--alter", *pair, "--delete-config", "producer_byte_rate")
    assert parley("configs", *at, "--describe", *pair).code == 1


def test_kafkas_tool_and_parleys_see_the_same_tokens(parley: Parley, at: tuple[str, ...]) -> None:
    tool = "org.apache.kafka.tools.DelegationTokenCommand"
    created = output_of_tool(tool, *at, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    (token,) = json.loads(parley("delegation-tokens", *at, "--describe", "--json").out)
    assert token["tokenId"] in created
    assert token["hmac"] in created
    assert (token["owner"], token["renewers"]) == ("User:alice", ["User:bob"])
    # Without an owner Kafka's tool asks for the tokens of no owner, and a broker returns none.
    shown = output_of_tool(tool, *at, "--describe", "--owner-principal", "User:alice")
    assert token["hmac"] in shown
    output_of_tool(tool, *at, "--renew", "--renew-time-period", "-1", "--hmac", token["hmac"])
    output_of_tool(tool, *at, "--expire", "--expiry-time-period", "-1", "--hmac", token["hmac"])
    assert json.loads(parley("delegation-tokens", *at, "--describe", "--json").out) == []
