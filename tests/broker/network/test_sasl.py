"""Logins over a connection: what a client may do before it, what a refused client learns, and when a session ends."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from parley.broker.network.connection import LOGIN_USUAL_S
from parley.broker.network.listener import Listener
from parley.broker.security.principal import Principal
from parley.broker.security.sasl.login import LoginRules
from parley.broker.security.sasl.mechanism import Exchange, Identity, Mechanism, Reply
from parley.broker.security.session import ClientSession
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from parley.protocol.security.logins import ScramLogin
from tests.broker.network.harness import RawClient, Unchanged, eventually, serving
from tests.broker.security.sasl.credentials import Users, mechanism

METADATA = MetadataRequest(topics=[])
USERS = Users({"alice": "secret"})
PLAIN = SaslHandshakeRequest(mechanism="PLAIN")
RIGHT, WRONG = b"\0alice\0secret", b"\0alice\0wrong"


@dataclass(frozen=True)
class Sasl(Unchanged):
    """The security of a listener with SASL and without TLS."""

    login_rules: LoginRules
    tls: None = None


def sasl(
    *, max_reauth_ms: int = 0, delay_s: float = 0.0, receive_bytes_max: int = 1000, own: Mechanism | None = None
) -> Sasl:
    mechanisms = {
        "PLAIN": own or mechanism("PLAIN", options={"user_alice": "secret", "user_bob": "bobs"}),
        "SCRAM-SHA-256": mechanism("SCRAM-SHA-256", USERS),
    }
    rules = LoginRules(mechanisms, dict.fromkeys(mechanisms, max_reauth_ms), receive_bytes_max, delay_s)
    return Sasl(rules)


class Asked:
    """A handler of Metadata that notes the principals of its clients."""

    def __init__(self) -> None:
        self.principals: list[Principal] = []

    def __call__(self, context: Any, request: Any) -> MetadataResponse:
        self.principals.append(context.principal)
        return MetadataResponse(brokers=[], topics=[])


def token(of: bytes) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=of)


async def logged_in(listener: Listener, version: int = 2, *, client_id: str = "") -> RawClient:
    client = await RawClient.connect(listener)
    client.client_id = client_id or client.client_id
    assert (await client.ask(PLAIN, 1)).error_code == ErrorCode.NONE
    assert (await client.ask(token(RIGHT), version)).error_code == ErrorCode.NONE
    return client


async def test_a_client_logs_in_and_is_known_by_its_name() -> None:
    asked = Asked()
    async with serving({3: asked}, security=sasl()) as listener:
        client = await RawClient.connect(listener)
        assert (await client.ask(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
        answer = await client.ask(PLAIN, 1)
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.NONE, ["PLAIN", "SCRAM-SHA-256"])
        answer = await client.ask(token(RIGHT), 2)
        assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (ErrorCode.NONE, b"", 0)
        await client.ask(METADATA, 9)
        assert [str(each) for each in asked.principals] == ["User:alice"]
        assert listener.metrics.authentications == 1
        assert listener.metrics.failed_authentications == 0


@pytest.mark.parametrize("version", [0, 1])
async def test_scram_takes_two_rounds_with_and_without_headers(version: int) -> None:
    asked = Asked()
    async with serving({3: asked}, security=sasl()) as listener:
        client = await RawClient.connect(listener)
        await client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), version)
        exchange = await ScramLogin("SCRAM-SHA-256", "alice", "secret").exchange()
        message = next(exchange)
        while True:
            if version:
                reply = (await client.ask(token(message), 1)).auth_bytes
            else:
                client.writer.write(struct.pack(">i", len(message)) + message)
                reply = await client.frame()
            try:
                message = exchange.send(reply)
            except StopIteration:
                break
        await client.ask(METADATA, 9)
        assert [str(each) for each in asked.principals] == ["User:alice"]


async def test_a_refused_client_learns_kafkas_message_and_is_disconnected() -> None:
    async with serving({}, security=sasl()) as listener:
        client = await RawClient.connect(listener)
        await client.ask(PLAIN, 1)
        answer = await client.ask(token(WRONG), 1)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == "Authentication failed: Invalid username or password"
        assert await client.is_closed()
        assert listener.metrics.failed_authentications == 1
        assert listener.metrics.killed == 0


async def test_unknown_users_and_wrong_passwords_get_the_same_response() -> None:
    messages = set()
    async with serving({}, security=sasl()) as listener:
        for user in ("alice", "nobody"):
            client = await RawClient.connect(listener)
            await client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
            exchange = await ScramLogin("SCRAM-SHA-256", user, "wrong").exchange()
            first = await client.ask(token(next(exchange)), 1)
            assert first.error_code == ErrorCode.NONE
            last = await client.ask(token(exchange.send(first.auth_bytes)), 1)
            messages.add((last.error_code, last.error_message, last.auth_bytes))
            assert await client.is_closed()
    (refusal,) = messages
    assert refusal[1] == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    )


async def test_a_refused_client_without_headers_learns_nothing() -> None:
    async with serving({}, security=sasl()) as listener:
        client = await RawClient.connect(listener)
        await client.ask(PLAIN, 0)
        client.writer.write(struct.pack(">i", len(WRONG)) + WRONG)
        assert await client.is_closed()


async def test_an_unknown_mechanism_gets_the_list_of_those_that_are_enabled() -> None:
    async with serving({}, security=sasl()) as listener:
        client = await RawClient.connect(listener)
        answer = await client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
        assert await client.is_closed()
        assert listener.metrics.failed_authentications == 1


async def test_a_refusal_is_counted_at_once_and_answered_late() -> None:
    async with serving({}, security=sasl(delay_s=3600)) as listener:
        client = await RawClient.connect(listener)
        await client.ask(PLAIN, 1)
        await client.send(token(WRONG), 1)
        await eventually(lambda: listener.metrics.failed_authentications == 1)
        assert listener.load.requests_in_progress == 0, "other requests do not wait for it"
        assert len(listener) == 1
        await client.close()
        await eventually(lambda: len(listener) == 0)
        assert listener.metrics.authentications == 0


@pytest.mark.parametrize("before", [[], [PLAIN]])
@pytest.mark.parametrize("request_", [METADATA, ApiVersionsRequest()])
async def test_nothing_else_is_served_before_the_login(before: list[Any], request_: Any) -> None:
    asked = Asked()
    async with serving({3: asked}, security=sasl()) as listener:
        client = await RawClient.connect(listener)
        await client.ask(ApiVersionsRequest(), 0)
        for each in before:
            await client.ask(each, 1)
        await client.send(request_, 0)
        assert await client.is_closed()
        assert asked.principals == []
        assert listener.metrics.failed_authentications == 1


async def test_tokens_before_the_handshake_are_refused() -> None:
    async with serving({}, security=sasl()) as listener:
        client = await RawClient.connect(listener)
        answer = await client.ask(token(RIGHT), 1)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()


async def test_an_unsupported_version_of_api_versions_can_be_followed_by_another() -> None:
    async with serving({}, security=sasl()) as listener:
        client = await RawClient.connect(listener)
        client.writer.write(struct.pack(">ihhih", 11, 18, 99, 1, -1) + b"\0")
        assert int.from_bytes((await client.frame())[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION
        assert (await client.ask(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
        assert (await client.ask(PLAIN, 1)).error_code == ErrorCode.NONE


async def test_requests_are_small_until_the_client_has_logged_in() -> None:
    async with serving({3: Asked()}, security=sasl(receive_bytes_max=100)) as listener:
        client = await logged_in(listener)
        client.client_id = "x" * 200
        await client.ask(METADATA, 9)
        stranger = await RawClient.connect(listener)
        stranger.writer.write(struct.pack(">i", 101))
        assert await stranger.is_closed()


async def test_a_client_that_does_not_log_in_is_disconnected() -> None:
    async with serving({3: Asked()}, security=sasl()) as listener:
        known = await logged_in(listener)
        listener.limits = replace(listener.limits, login_s=0.05)
        silent = await RawClient.connect(listener)
        assert await silent.is_closed()
        assert listener.metrics.failed_authentications == 1
        await known.ask(METADATA, 9)


async def test_slow_strangers_make_room_first() -> None:
    clock = [100.0]
    async with serving({3: Asked()}, security=sasl(), monotonic=lambda: clock[0]) as listener:
        idle = await logged_in(listener)
        clock[0] += 50
        listener.quotas.close_least_active()
        assert await idle.is_closed(), "without strangers, it is the one that is idle longest"
        known, stranger = await logged_in(listener), await RawClient.connect(listener)
        stranger.client_id = "broker-9"
        await stranger.ask(ApiVersionsRequest(), 0)
        clock[0] += LOGIN_USUAL_S + 1
        fresh = await RawClient.connect(listener)
        await fresh.ask(ApiVersionsRequest(), 0)
        listener.quotas.close_least_active()
        assert await stranger.is_closed(), "whatever it calls itself"
        assert listener.metrics.evicted == 2
        await known.ask(METADATA, 9)
        assert (await fresh.ask(PLAIN, 1)).error_code == ErrorCode.NONE


async def test_a_client_is_not_spared_because_it_calls_itself_a_broker() -> None:
    clock = [100.0]
    rights: set[str] = set()

    def is_broker(session: ClientSession) -> bool:
        return str(session.principal) in rights

    async with serving({3: Asked()}, security=sasl(), monotonic=lambda: clock[0], is_broker=is_broker) as listener:
        impostor = await logged_in(listener, client_id="broker-9")
        clock[0] += 1
        known = await logged_in(listener)
        rights.add("User:alice")
        listener.quotas.close_least_active()
        assert await known.is_closed(), "with the right it is a broker, and stays"
        rights.clear()
        listener.quotas.close_least_active()
        assert await impostor.is_closed()


async def test_a_listener_without_sasl_refuses_logins_and_stays_connected() -> None:
    async with serving({3: Asked()}) as listener:
        client = await RawClient.connect(listener)
        assert (await client.ask(PLAIN, 1)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.ask(token(RIGHT), 1)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await client.ask(METADATA, 9)


async def test_a_second_login_is_refused_if_the_session_does_not_expire() -> None:
    async with serving({3: Asked()}, security=sasl()) as listener:
        client = await logged_in(listener)
        assert (await client.ask(PLAIN, 1)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.ask(token(RIGHT), 1)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await client.ask(METADATA, 9)


async def test_a_session_is_renewed_before_it_expires() -> None:
    clock = [100.0]
    security = sasl(max_reauth_ms=5000)
    async with serving({3: Asked()}, security=security, monotonic=lambda: clock[0]) as listener:
        client = await RawClient.connect(listener)
        await client.ask(PLAIN, 1)
        assert (await client.ask(token(RIGHT), 2)).session_lifetime_ms == 5000
        clock[0] += 4
        await client.ask(METADATA, 9)
        await client.ask(PLAIN, 1)
        assert (await client.ask(token(RIGHT), 2)).session_lifetime_ms == 5000
        clock[0] += 4
        await client.ask(METADATA, 9)
        clock[0] += 2
        await client.send(METADATA, 9)
        assert await client.is_closed()
        metrics = listener.metrics
        assert (metrics.authentications, metrics.reauthentications, metrics.expired) == (1, 1, 1)
        assert metrics.authentications_without_reauthentication == 0
        assert metrics.killed == 0


async def test_a_renewal_as_another_user_fails() -> None:
    clock = [100.0]
    security = sasl(max_reauth_ms=5000)
    async with serving({3: Asked()}, security=security, monotonic=lambda: clock[0]) as listener:
        client = await logged_in(listener)
        await client.ask(PLAIN, 1)
        answer = await client.ask(token(b"\0bob\0bobs"), 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "Cannot change principals" in answer.error_message
        assert await client.is_closed()
        assert listener.metrics.failed_reauthentications == 1


async def test_an_old_client_whose_session_expires_is_counted() -> None:
    async with serving({}, security=sasl(max_reauth_ms=5000)) as listener:
        await logged_in(listener, version=0)
        assert listener.metrics.authentications_without_reauthentication == 1


class Waiting:
    """A mechanism that waits until the test decides."""

    user = "waiting"

    def __init__(self) -> None:
        self.decided: asyncio.Future[Identity] = asyncio.get_running_loop().create_future()

    def begin(self) -> Exchange:
        return self

    def close(self) -> None:
        """Nothing to release."""

    def evaluate(self, token: bytes) -> Awaitable[Reply]:
        return self._evaluate()

    async def _evaluate(self) -> Reply:
        return Reply(b"", await self.decided)


async def test_a_mechanism_may_wait_without_holding_up_anything() -> None:
    waiting, asked = Waiting(), Asked()
    async with serving({3: asked}, security=sasl(own=waiting)) as listener:
        client = await RawClient.connect(listener)
        await client.ask(PLAIN, 1)
        await client.send(token(b"x"), 1)
        await client.send(METADATA, 9)
        known = await RawClient.connect(listener)
        await known.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
        assert listener.load.requests_in_progress == 0
        waiting.decided.set_result(Identity(Principal("User", "late")))
        assert (await client.answer(SaslAuthenticateRequest, 1))[1].error_code == ErrorCode.NONE
        await client.answer(MetadataRequest, 9)
        assert [str(each) for each in asked.principals] == ["User:late"]


async def test_a_mechanism_that_takes_too_long_logs_nobody_in() -> None:
    waiting = Waiting()
    async with serving({}, security=sasl(own=waiting), login_s=0.05) as listener:
        client = await RawClient.connect(listener)
        with suppress(ConnectionError):  # the connection may end before all is sent
            await client.send(PLAIN, 1)
            await client.send(token(b"x"), 1)
            await client.reader.read()
        waiting.decided.set_result(Identity(Principal("User", "late")))
        await eventually(lambda: not listener.tasks)
        assert listener.metrics.authentications == 0


class Broken(Waiting):
    def evaluate(self, token: bytes) -> Awaitable[Reply]:
        raise ZeroDivisionError(token)


async def test_a_defect_of_a_mechanism_refuses_the_client(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({}, security=sasl(own=Broken())) as listener:
        client = await RawClient.connect(listener)
        await client.ask(PLAIN, 1)
        answer = await client.ask(token(b"x"), 1)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "ZeroDivisionError" not in answer.error_message
    assert "a login failed with an unexpected error" in caplog.text


class Refusing(Sasl):
    """Rules for principals that fail."""

    def identified(self, session: ClientSession) -> ClientSession:
        raise KeyError(session.principal.name)


async def test_rules_for_principals_that_fail_refuse_the_client() -> None:
    async with serving({3: Asked()}, security=Refusing(sasl().login_rules)) as listener:
        client = await RawClient.connect(listener)
        await client.ask(PLAIN, 1)
        assert (await client.ask(token(RIGHT), 1)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()
        assert (listener.metrics.authentications, listener.metrics.failed_authentications) == (0, 1)


async def test_a_failed_login_is_logged_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving({}, security=sasl()) as listener:
        client = await RawClient.connect(listener)
        await client.ask(PLAIN, 1)
        await client.ask(token(b"\0" + b"m" * 500 + b"\0hunter2"), 1)
        await eventually(lambda: len(listener) == 0)
    (record,) = [each for each in caplog.records if each.message == "authentication failed"]
    assert record.__dict__["user"] == "m" * 64
    assert record.__dict__["mechanism"] == "PLAIN"
    assert record.__dict__["reason"] == "wrong user or password"
    assert not any("hunter2" in str(each.__dict__) for each in caplog.records)
