"""PLAIN with the users of a JAAS entry, and with a custom verifier."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import pytest

from parley.broker.config import ConfigError
from parley.broker.security.principal import user
from parley.broker.security.sasl.mechanism import LoginRefused, Reply
from tests.broker.security.sasl.credentials import mechanism

OPTIONS = {"username": "broker", "password": "between", "user_alice": "secret", "user_b": "", "other": "x"}


def evaluated(token: bytes, options: Mapping[str, str] = OPTIONS) -> Reply:
    reply = mechanism("PLAIN", options=options).begin().evaluate(token)
    assert isinstance(reply, Reply)
    return reply


@pytest.mark.parametrize("token", [b"\0alice\0secret", b"alice\0alice\0secret"])
def test_a_user_logs_in(token: bytes) -> None:
    reply = evaluated(token)
    assert reply.token == b""
    assert reply.identity is not None
    assert reply.identity.principal == user("alice")


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0secret", "Authentication failed: Invalid username or password"),
        (b"\0broker\0between", "Authentication failed: Invalid username or password"),
        (b"\0b\0x", "Authentication failed: Invalid username or password"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (
            b"bob\0alice\0secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"", ""),
        (b"alice\0secret", ""),
        (b"\0alice\0secret\0", ""),
        (b"\0alice\0\xff", ""),
    ],
)
def test_a_refused_client_receives_kafkas_message(token: bytes, text: str) -> None:
    with pytest.raises(LoginRefused) as refused:
        evaluated(token)
    assert refused.value.client_message == text
    assert "secret" not in str(refused.value)


class Verifier:
    """What an operator writes; the password is the name backwards."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._suffix = options["suffix"]

    def verify(self, name: str, password: str) -> bool:
        return password == name[::-1] + self._suffix


class SlowVerifier(Verifier):
    async def verify(self, name: str, password: str) -> bool:  # type: ignore[override]
        return super().verify(name, password)


async def test_an_operators_verifier_is_asked() -> None:
    for cls in (Verifier, SlowVerifier):
        plain = mechanism("PLAIN", options={"suffix": "!"}, handler=f"{__name__}.{cls.__name__}")
        for password, is_right in (("ecila!", True), ("alice", False)):
            try:
                reply = plain.begin().evaluate(f"\0alice\0{password}".encode())
                if inspect.isawaitable(reply):
                    reply = await reply
                assert is_right
                assert reply.identity is not None
            except LoginRefused:
                assert not is_right


@pytest.mark.parametrize("handler", ["nowhere.V", f"{__name__}.Nothing", "builtins.dict", f"{__name__}.Verifier"])
def test_a_verifier_that_cannot_be_used_is_a_problem_of_the_configuration(handler: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.server\.callback\.handler\.class"):
        mechanism("PLAIN", handler=handler)


def test_a_mechanism_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"sasl\.enabled\.mechanisms=CRAM-MD5 .*PLAIN, SCRAM-SHA-256"):
        mechanism("CRAM-MD5")
