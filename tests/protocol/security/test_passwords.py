"""Verifying the passwords of known users."""

from __future__ import annotations

import pytest

from parley.protocol.security.passwords import Passwords, basic_credentials

USERS = Passwords({"alice": "secret", "björn": "ключ", "empty": ""})


@pytest.mark.parametrize(("name", "password"), [("alice", "secret"), ("björn", "ключ"), ("empty", "")])
def test_right(name: str, password: str) -> None:
    assert USERS.verify(name, password)


@pytest.mark.parametrize(
    ("name", "password"),
    [("alice", ""), ("alice", "Secret"), ("alice", "secret\0"), ("bob", "secret"), ("", ""), ("alice", "\ud800")],
)
def test_wrong(name: str, password: str) -> None:
    assert not USERS.verify(name, password)
    assert "secret" not in repr(USERS)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Basic YWxpY2U6czpl", ("alice", "s:e")),
        ("bAsIc  YWxpY2U6czpl ", ("alice", "s:e")),
        ("Basic YWxpY2U=", ("alice", "")),
        *((header, ("", "")) for header in ("", "Basic", "Basic ?", "Basic /w==", "Bearer YWxpY2U6czpl")),
    ],
)
def test_basic_credentials(header: str, found: tuple[str, str]) -> None:
    assert basic_credentials(header) == found
