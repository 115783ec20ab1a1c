"""Principals in Kafka's notation."""

from __future__ import annotations

import pytest

from parley.broker.security.principal import ANONYMOUS, Principal, user


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("User:alice", "User", "alice"),
        ("User:CN=broker,OU=a:b", "User", "CN=broker,OU=a:b"),
        ("Group:", "Group", ""),
        ("User:*", "User", "*"),
    ],
)
def test_a_principal_is_parsed_and_printed(text: str, kind: str, name: str) -> None:
    assert Principal.parse(text) == Principal(kind, name)
    assert str(Principal(kind, name)) == text


@pytest.mark.parametrize("text", ["", "alice", ":alice"])
def test_a_principal_without_a_kind_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="kind:name"):
        Principal.parse(text)


def test_the_anonymous_principal_is_kafkas() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert user("ANONYMOUS") == ANONYMOUS
