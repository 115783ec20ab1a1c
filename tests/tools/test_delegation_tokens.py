"""``parley delegation-tokens``: from the creation of a token to its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley import Broker
from tests.tools.conftest import Parley

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
    """The options that every command needs."""
    (address,) = (f"{each.host}:{each.port}" for each in secured.server.endpoints if each.listener == "USERS")
    config = tmp_path / "alice.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={MODULE} username="alice" password="a";\n'
    )
    return "--bootstrap-server", address, "--command-config", str(config)


def test_a_token_from_its_creation_to_its_end(parley: Parley, at: tuple[str, ...]) -> None:
    created = parley("delegation-tokens", *at, "--create", "--renewer-principal", "User:bob", "--json")
    assert created.code == 0, created.err
    (token,) = json.loads(created.out)
    assert (token["owner"], token["requester"], token["renewers"]) == ("User:alice", "User:alice", ["User:bob"])
    assert token["expiresMs"] - token["issuedMs"] == 86_400_000
    shown = parley("delegation-tokens", *at, "--describe", "--owner-principal", "User:alice")
    assert shown.lines[0] == "Total number of tokens : 1"
    assert shown.lines[2].startswith(token["tokenId"])
    renewed = parley("delegation-tokens", *at, "--renew", "--hmac", token["hmac"], "--renew-time-period", "3600000")
    assert renewed.out.startswith("Completed renew operation. New expiry date : 20")
    assert parley("delegation-tokens", *at, "--expire", "--hmac", token["hmac"]).code == 0
    assert json.loads(parley("delegation-tokens", *at, "--describe", "--json").out) == []
    gone = parley("delegation-tokens", *at, "--renew", "--hmac", token["hmac"])
    assert (gone.code, "DELEGATION_TOKEN_NOT_FOUND" in gone.err) == (1, True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "Name exactly one of --create"),
        (("--renew",), "--renew needs --hmac"),
        (("--expire", "--hmac", "not base64"), "--hmac takes the HMAC"),
        (("--create", "--owner-principal", "alice"), "not a principal"),
        (("--create", "--owner-principal", "User:a", "--owner-principal", "User:b"), "one owner"),
    ],
)
def test_options_that_make_no_sense(parley: Parley, at: tuple[str, ...], words: tuple[str, ...], text: str) -> None:
    done = parley("delegation-tokens", *at, *words)
    assert done.code == 1
    assert text in done.err


def test_a_client_that_has_not_logged_in_is_told_so(parley: Parley, secured: Broker) -> None:
    (address,) = (f"{each.host}:{each.port}" for each in secured.server.endpoints if each.listener == "PLAINTEXT")
    done = parley("delegation-tokens", "--bootstrap-server", address, "--describe")
    assert (done.code, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in done.err) == (1, True)
