"""SaslHandshake and SaslAuthenticate: the login of a client (KIP-43, KIP-152, KIP-368).

The rules of a login are in ``parley.broker.security.sasl.login``. The response to a failed login is delayed by
``connection.failed.authentication.delay.ms``, and then the connection is closed. A client that waits for this, or for a
mechanism that calls another server, does not count as work in progress, so other clients' requests are served in the
meantime.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.network.request_context import Handler, LoginFailed, RequestContext
from parley.broker.runtime.tasks import TaskSet
from parley.broker.security.sasl.login import Login, LoginState, UnsupportedMechanism
from parley.broker.security.sasl.mechanism import LoginRefused, Reply
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from parley.protocol.schema import Response

_log = logging.getLogger(__name__)


class SaslApi:
    """Handlers of SaslHandshake and SaslAuthenticate."""

    def __init__(self, tasks: TaskSet, monotonic: Callable[[], float], wall_ms: Callable[[], int]) -> None:
        self._tasks = tasks
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self._failures = FailureLog(_log)

    def routes(self) -> dict[int, Handler]:
        return {SaslHandshakeRequest.API_KEY: self.handshake, SaslAuthenticateRequest.API_KEY: self.authenticate}

    def handshake(
        self, context: RequestContext, request: SaslHandshakeRequest
    ) -> SaslHandshakeResponse | Awaitable[LoginFailed]:
        """Start a login. The error code is ILLEGAL_SASL_STATE if the client cannot or need not log in now.

        If the login fails, returns a future of the connection's last response.
        """
        login = context.client.login
        if login is None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
        offered = sorted(login.rules.mechanisms)
        try:
            has_begun = login.handshake(request.mechanism, context.api_version, self._monotonic())
        except LoginRefused as refused:
            is_unknown = isinstance(refused, UnsupportedMechanism)
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM if is_unknown else ErrorCode.ILLEGAL_SASL_STATE
            return self._refuse(login, refused, SaslHandshakeResponse(error_code=code, mechanisms=offered))
        code = ErrorCode.NONE if has_begun else ErrorCode.ILLEGAL_SASL_STATE
        return SaslHandshakeResponse(error_code=code, mechanisms=offered)

    def authenticate(
        self, context: RequestContext, request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse | Awaitable[Any]:
        """Process a token of a login. The error code is ILLEGAL_SASL_STATE if the client need not log in or is already
        logged in.

        If the mechanism must wait, for example for another server, returns an awaitable of the response. If the login
        fails, returns a future of the connection's last response.
        """
        login = context.client.login
        if login is None or login.state is LoginState.COMPLETE:
            message = "SaslAuthenticate request received after successful authentication"
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=message, auth_bytes=b""
            )
        login.can_reauthenticate |= context.api_version > 0
        try:
            reply = login.evaluate(bytes(request.auth_bytes))
            if inspect.isawaitable(reply):
                name = f"login of {context.client_host}"
                return self._tasks.start(self._await(login, reply), name=name, expected=(LoginFailed,))
            return self._replied(login, reply)
        except Exception as error:
            return self._failed(login, error)

    async def _await(
        self, login: Login, reply: Awaitable[Reply]
    ) -> SaslAuthenticateResponse | asyncio.Future[LoginFailed]:
        try:
            evaluated = await reply
            if login.state is LoginState.REFUSED:
                raise LoginFailed("the mechanism took too long")
            return self._replied(login, evaluated)
        except LoginFailed:
            raise
        except Exception as error:
            return self._failed(login, error)

    def _replied(self, login: Login, reply: Reply) -> SaslAuthenticateResponse:
        lifetime_ms = login.replied(reply, now=self._monotonic(), wall_ms=self._wall_ms())
        return SaslAuthenticateResponse(auth_bytes=reply.token, session_lifetime_ms=lifetime_ms)

    def _failed(self, login: Login, error: Exception) -> asyncio.Future[LoginFailed]:
        if not isinstance(error, LoginRefused):
            self._failures.report(
                "a login failed with an unexpected error", error, self._monotonic(), mechanism=login.mechanism
            )
            error = LoginRefused(f"the mechanism failed: {type(error).__name__}")
        again = "re-authentication" if login.is_reauthentication else "authentication"
        text = error.client_message or (
            f"Authentication failed during {again} due to invalid credentials with SASL mechanism {login.mechanism}"
        )
        return self._refuse(
            login,
            error,
            SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=text, auth_bytes=b""
            ),
        )

    def _refuse(self, login: Login, refused: LoginRefused, response: Response) -> asyncio.Future[LoginFailed]:
        """Return a future of the connection's last response, which completes after the delay."""
        is_raw = login.is_raw  # such a client gets no response, only a closed connection
        login.refuse(str(refused))
        loop = asyncio.get_running_loop()
        refusal: asyncio.Future[LoginFailed] = loop.create_future()
        failed = LoginFailed(str(refused), None if is_raw else response)
        loop.call_later(login.rules.refusal_delay_s, _complete, refusal, failed)
        return refusal


def _complete(refusal: asyncio.Future[LoginFailed], failed: LoginFailed) -> None:
    if not refusal.done():
        refusal.set_result(failed)
