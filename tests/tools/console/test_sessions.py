"""The console's sessions and logins, with a cluster that only checks passwords."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from parley.protocol.errors import ErrorCode, KafkaError
from parley.tools.console import sessions as subject
from parley.tools.console.app import address_of
from parley.tools.console.sessions import ADDRESS_LOGINS_MAX, SESSIONS_MAX, USER_SESSIONS_MAX, Session, Sessions
from parley.tools.console.settings import ConsoleSettings
from tests.tools.console.conftest import browsing

_SETTINGS = ConsoleSettings("127.0.0.1:1", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"})


class _View:
    """A user's view. Its client rejects all passwords but ``right``."""

    def __init__(self, settings: ConsoleSettings, user: str, password: str) -> None:
        self.user = user
        self._password = password
        self.client = SimpleNamespace(metadata=self._metadata)

    async def _metadata(self, topics: list[str]) -> None:
        if self._password != "right":
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED)

    async def close(self) -> None:
        """Do nothing."""


async def _no_samples(view: Any, folder: Any) -> None:
    pass


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    """Return the sessions of a console that requires a login."""
    monkeypatch.setattr(subject, "ClusterView", _View)
    monkeypatch.setattr(subject, "sample_forever", _no_samples)
    return Sessions(_SETTINGS)


async def _log_in(sessions: Sessions, user: str, password: str = "right", address: str = "192.0.2.1") -> Session:
    return await sessions.log_in(await sessions.begin(), user, password, address)


async def test_visitors_do_not_end_sessions(sessions: Sessions) -> None:
    alice, visitor = await _log_in(sessions, "alice"), await sessions.begin()
    for _ in range(SESSIONS_MAX + 10):
        await sessions.begin()
    assert sessions.find(alice.id) is alice
    assert sessions.find(visitor.id) == visitor


async def test_a_visitor_is_recognised_only_by_the_console_that_issued_the_cookie(sessions: Sessions) -> None:
    visitor = await sessions.begin()
    assert Sessions(_SETTINGS).find(visitor.id) is None
    assert sessions.find(f"x{visitor.id}") is None
    assert sessions.find("é.é") is None
    assert visitor.csrf not in visitor.id


async def test_too_many_sessions_of_a_user_end_only_sessions_of_this_user(sessions: Sessions) -> None:
    bob = await _log_in(sessions, "bob")
    alice = [await _log_in(sessions, "alice") for _ in range(USER_SESSIONS_MAX + 1)]
    assert [sessions.find(one.id) is not None for one in (bob, *alice)] == [True, False, *[True] * USER_SESSIONS_MAX]


async def test_delayed_logins_only_keep_their_address_waiting(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_REFUSAL_DELAY_S", 3600.0)
    wrong = [asyncio.create_task(_log_in(sessions, "alice", "wrong")) for _ in range(ADDRESS_LOGINS_MAX)]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert (await _log_in(sessions, "alice", address="192.0.2.2")).view is not None
    with pytest.raises(HTTPException) as refused:
        await _log_in(sessions, "alice")
    assert (refused.value.status_code, refused.value.headers) == (429, {"retry-after": "1"})
    for one in wrong:
        one.cancel()
    await asyncio.gather(*wrong, return_exceptions=True)
    assert (await _log_in(sessions, "alice")).view is not None


async def test_logins_of_all_addresses_have_a_limit(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LOGINS_MAX", 0)
    with pytest.raises(HTTPException):
        await _log_in(sessions, "alice")


async def test_a_refused_login_names_the_time_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LOGINS_MAX", 0)
    async with browsing(_SETTINGS) as browser:
        refused = await browser.try_change("POST", "login", {"user": "alice", "password": "a"})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.1"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("testclient", "testclient"),
    ],
)
def test_the_addresses_of_an_ipv6_network_count_as_one(host: str, address: str) -> None:
    assert address_of(Request({"type": "http", "client": (host, 1)})) == address
