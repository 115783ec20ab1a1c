"""The addresses of host names that users type."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from parley.tools.cli.host_names import address_of
from parley.tools.cli.users_and_clients import entity_of

ADDRESSES = {
    "both": [(socket.AF_INET6, "::1"), (socket.AF_INET, "10.0.0.2"), (socket.AF_INET, "10.0.0.1")],
    "new": [(socket.AF_INET6, "::2")],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names that were looked up."""
    names: list[str] = []

    def getaddrinfo(name: str, port: Any, **_: Any) -> list[tuple[Any, ...]]:
        names.append(name)
        if name not in ADDRESSES:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(family, 1, 6, "", (address, 0)) for family, address in ADDRESSES[name]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return names


def test_ipv4_comes_first(asked: list[str]) -> None:
    assert [address_of(name) for name in ("both", "new", "unknown")] == ["10.0.0.1", "::2", None]
    assert asked == ["both", "new", "unknown"]


@pytest.mark.parametrize("name", ["", "a b", "x" * 300, "ä", "-x", "a/b"])
def test_an_invalid_host_name_is_not_looked_up(asked: list[str], name: str) -> None:
    assert address_of(name) is None
    assert asked == []


def test_the_name_of_a_host_stands_for_its_address_in_quotas(asked: list[str]) -> None:
    assert entity_of([("ip", "both")]) == (("ip", "10.0.0.1"),)
    assert entity_of([("ip", "unknown")]) == (("ip", "unknown"),), "the broker refuses it"
    assert asked == ["both", "unknown"]


def test_addresses_defaults_and_other_entities_are_not_looked_up(asked: list[str]) -> None:
    assert entity_of([("user", "both"), ("client", "new")]) == (("user", "both"), ("client-id", "new"))
    for name in ("10.0.0.9", "::9", "", None):
        assert entity_of([("ip", name)]) == (("ip", name),)
    assert asked == []
