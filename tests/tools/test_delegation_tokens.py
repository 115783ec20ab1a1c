"""``parley delegation-tokens``: from the creation of a token to its expiry."""

from __future__ import annotations

import io
import json

import pytest

from parley import Broker
from tests.tools.conftest import Parley


def test_a_token_from_its_creation_to_its_end(
    parley: Parley, alice: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    created = parley("delegation-tokens", *alice, "--create", "--renewer-principal", "User:bob", "--json")
    assert created.code == 0, created.err
    (token,) = json.loads(created.out)
    assert (token["owner"], token["requester"], token["renewers"]) == ("User:alice", "User:alice", ["User:bob"])
    assert token["expiresMs"] - token["issuedMs"] == 86_400_000
    shown = parley("delegation-tokens", *alice, "--describe", "--owner-principal", "User:alice")
    assert shown.lines[0] == "Total number of tokens : 1"
    assert shown.lines[2].startswith(token["tokenId"])
    renewed = parley("delegation-tokens", *alice, "--renew", "--hmac", token["hmac"], "--renew-time-period", "3600000")
    assert renewed.out.startswith("Completed renew operation. New expiry date : 20")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token['hmac']}\n"))
    assert parley("delegation-tokens", *alice, "--expire", "--hmac", "-").code == 0
    assert json.loads(parley("delegation-tokens", *alice, "--describe", "--json").out) == []
    gone = parley("delegation-tokens", *alice, "--renew", "--hmac", token["hmac"])
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
def test_options_that_make_no_sense(parley: Parley, alice: tuple[str, ...], words: tuple[str, ...], text: str) -> None:
    done = parley("delegation-tokens", *alice, *words)
    assert done.code == 1
    assert text in done.err


def test_a_client_that_has_not_logged_in_gets_an_error(parley: Parley, broker_with_users: Broker) -> None:
    endpoints = broker_with_users.server.endpoints
    (address,) = (f"{each.host}:{each.port}" for each in endpoints if each.listener == "PLAINTEXT")
    done = parley("delegation-tokens", "--bootstrap-server", address, "--describe")
    assert (done.code, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in done.err) == (1, True)
