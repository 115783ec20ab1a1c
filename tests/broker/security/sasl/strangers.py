"""A client without an account that may send any bytes: no sequence of frames logs it in or reaches a handler."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from parley.broker.api.api_versions import ApiVersionsApi
from parley.broker.api.sasl import SaslApi
from parley.broker.network.dispatch import Dispatcher
from parley.broker.network.request_context import ConnectedClient, Disconnect
from parley.broker.runtime.tasks import TaskSet
from parley.broker.security.principal import ANONYMOUS
from parley.broker.security.sasl.login import Login, LoginRules, LoginState
from parley.broker.security.sasl.oauthbearer.mechanism import BearerMechanism
from parley.broker.security.sasl.oauthbearer.signed_tokens import Expected, SignedVerifier
from parley.broker.security.session import anonymous
from parley.protocol.codec import request_frame
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from parley.protocol.schema import Request
from tests.broker.security.sasl.credentials import WALL_MS, Users, mechanism
from tests.broker.security.sasl.tokens import jwk, message, signed

PASSWORD = "a password that no example contains"


class _Keys:
    def renew(self, key_id: str | None) -> None:
        """They are always fresh."""

    def close(self) -> None:
        """Release nothing."""

    def find(self, key_id: str | None) -> list[dict[str, Any]]:
        return [jwk("rsa")]


@cache
def _rules() -> LoginRules:
    mechanisms = {
        "PLAIN": mechanism("PLAIN", options={"user_alice": PASSWORD}),
        "SCRAM-SHA-256": mechanism("SCRAM-SHA-256", Users({"alice": PASSWORD})),
        "OAUTHBEARER": BearerMechanism(SignedVerifier(_Keys(), Expected())),
    }
    return LoginRules(mechanisms, {"PLAIN": 5000}, 1 << 20, 0.0)


def _frame(request: Request, version: int) -> bytes:
    return b"".join(request_frame(request, version, 1, "stranger"))[4:]


def _token(token: bytes, version: int = 1) -> bytes:
    return _frame(SaslAuthenticateRequest(auth_bytes=token), version)


@cache
def proper_frames() -> tuple[bytes, ...]:
    """Return frames that a client may send in some state, as the starting point of examples."""
    tokens = [
        b"\0alice\0wrong",
        b"n,,n=alice,r=nonce",
        b"c=biws,r=nonce,p=AAAA",
        message(signed("stranger", named="rsa")),
        b"\x01",
    ]
    handshakes = [
        _frame(SaslHandshakeRequest(mechanism=name), version)
        for name in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI")
        for version in (0, 1)
    ]
    others = [
        _frame(MetadataRequest(topics=[]), 9),
        _frame(ApiVersionsRequest(), 0),
        struct.pack(">hhih", 18, 99, 1, -1),
    ]
    return (*handshakes, *tokens, *(_token(each, version) for each in tokens for version in (0, 2)), *others)


async def send(frames: Sequence[bytes]) -> LoginState:
    """Send frames until the connection ends. Returns the last state of the login. Any other exception is a bug."""
    reached: list[object] = []
    tasks = TaskSet()
    sasl = SaslApi(tasks, lambda: 0.0, lambda: WALL_MS)
    versions = ApiVersionsApi(lambda: dispatcher.routes)
    dispatcher = Dispatcher(
        {
            **sasl.routes(),
            **versions.routes(),
            MetadataRequest.API_KEY: lambda context, request: reached.append(request),
        },
        monotonic=lambda: 0.0,
    )
    session = anonymous("127.0.0.1", "SASL")
    client = ConnectedClient(session, 1, Login(_rules(), session))
    assert client.login is not None
    try:
        for frame in frames:
            context, response = dispatcher.handle(client, memoryview(bytearray(frame)), 0.0)
            while not isinstance(response, list):
                if not isinstance(done := await response, asyncio.Future):
                    if isinstance(done, Disconnect):
                        raise done
                    response = dispatcher.encode(context, done, 0.0)
                else:
                    response = done
    except Disconnect:
        pass  # how a stranger's connection ends
    finally:
        await tasks.close()
    assert reached == []
    assert client.session.principal == ANONYMOUS
    return client.login.state
