"""One connection of a client to a broker: versions, login, pipelined requests, throttling (KIP-219)."""

from __future__ import annotations

import asyncio
import random
import ssl
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple, cast

from parley.protocol.connection import ClientConnection, FrameTooLarge, OtherProtocol
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from parley.protocol.schema import Request, Response, VersionRange
from parley.protocol.security.client_security import ClientSecurity
from parley.protocol.security.logins import Login, LoginRefused
from parley.version import VERSION

__all__ = ["Address", "ConnectionClosed", "Link", "NotAuthenticated", "tls_refused"]

MAYBE_TLS: Final = "; if the listener uses TLS, set security.protocol"
"""Appended to the error if the broker closes a connection without TLS before the first response."""
HANDSHAKE_FAILED: Final = "the TLS handshake failed"
INVALID_CERTIFICATE: Final = "the broker's certificate is not valid"
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's codes of certificates whose issuer is not trusted: X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT to
X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE."""
_LIFETIME_USED: Final = (0.85, 0.95)
"""The range of the fraction of a session's lifetime after which the client logs in again, as in Kafka's client."""
_THROTTLES_AFTERWARDS: Final = 2
"""The first ApiVersions version for which a throttling broker responds immediately and expects the client to wait
afterwards. For older versions, the broker delays the response."""
_discarded = bytearray(4096)  # receives the data that arrives on an abandoned connection


class NotAuthenticated(KafkaError):
    """The broker rejects the login, or the TLS handshake fails. A retry will fail until the client or the broker is
    reconfigured."""


class ConnectionClosed(KafkaError):
    """The other side accepted the connection and then closed it, or it does not use Kafka's protocol.

    Listeners that require TLS close connections without TLS. Listeners that require a login close connections whose
    client does not log in.
    """

    def __init__(self, code: ErrorCode, message: str, protocol: OtherProtocol | None = None) -> None:
        super().__init__(code, message)
        self.protocol = protocol
        """The protocol that the other side seems to use; None if that may be Kafka's protocol."""


class Address(NamedTuple):
    """The host and port of a broker's listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def tls_refused(address: Address, error: ssl.SSLError, trusted: str = "") -> NotAuthenticated:
    """Return the client's error for a failed TLS handshake. ``trusted`` is ``ClientSecurity.trusted``, or empty."""
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"{INVALID_CERTIFICATE}: {error.verify_message.rstrip('.')}"
        if error.verify_code in _UNKNOWN_ISSUER and trusted:
            text += f"; trusted are {trusted}"
    elif "unknown ca" in reason:  # the name of the alert reads as if the broker's authority were unknown
        text = f"{HANDSHAKE_FAILED}: the broker does not trust the authority of the client's certificate ({reason})"
    elif "certificate required" in reason:
        text = f"the broker rejects the client's certificate: {reason}; set ssl.keystore.location"
    elif "alert" in reason and "cert" in reason:
        text = f"the broker rejects the client's certificate: {reason}"
    elif reason in ("wrong version number", "record layer failure"):
        text = f"{HANDSHAKE_FAILED}: {reason}; the listener may not use TLS"
    else:
        text = f"{HANDSHAKE_FAILED}: {reason}"
    return NotAuthenticated(ErrorCode.NETWORK_EXCEPTION, f"{address}: {text}")


class Link(asyncio.BufferedProtocol):
    """One connection to a broker. Each response completes the future of its request."""

    def __init__(self, address: Address, client_id: str | None, max_frame_bytes: int) -> None:
        self.address = address
        self.is_open = True
        self.is_silent = False
        """True if a response is overdue and no bytes have arrived since."""
        self.versions: dict[int, tuple[int, int]] = {}  # API key -> the broker's lowest and highest version
        self._connection = ClientConnection(client_id, max_frame_bytes)
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: str | None = None
        self._protocol: OtherProtocol | None = None
        self.ended_at: float | None = None
        self._throttled_until = 0.0  # the broker reads no request before this time
        self._login: Login | None = None
        self._login_due: float | None = None
        """The time of the next login, by the loop's clock; None if the session does not expire."""
        self._turn = asyncio.Lock()
        """Held by the request that is sent next, so that waiting requests keep their order."""

    # --- Called by the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the interface but not the class

    def get_buffer(self, sizehint: int) -> memoryview:
        try:
            return self._connection.get_buffer(sizehint)
        except MemoryError:
            if self._ended is None:
                self._ended = "not enough memory for the response"
                # Not now: uvloop crashes if its transport is closed here.
                asyncio.get_running_loop().call_soon(self.abort)
            return memoryview(_discarded)

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended is not None:
            return
        self.is_silent = False
        try:
            for correlation_id, response in self._connection.buffer_updated(nbytes):
                waiting = self._waiting.pop(correlation_id)
                if throttle_ms := getattr(response, "throttle_time_ms", 0):
                    self._note_throttle(throttle_ms / 1000)
                if not waiting.done():
                    waiting.set_result(response)
        except MalformedMessage as malformed:
            if isinstance(malformed, FrameTooLarge):
                self._protocol = malformed.protocol
            self._end(str(malformed))
        except MemoryError:
            self._end("not enough memory for the response")

    @property
    def throttle_left_s(self) -> float:
        """How long the broker will not read from this client, in seconds, because the client has exceeded a quota; 0 or
        negative if the broker reads now."""
        return self._throttled_until - asyncio.get_running_loop().time()

    def _note_throttle(self, seconds: float) -> None:
        if self.versions.get(ApiVersionsRequest.API_KEY, (0, 0))[1] >= _THROTTLES_AFTERWARDS:
            self._throttled_until = max(self._throttled_until, asyncio.get_running_loop().time() + seconds)

    def _end(self, reason: str) -> None:
        self._ended = reason
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.ended_at = asyncio.get_running_loop().time()
        for waiting in self._waiting.values():
            if waiting.done():
                continue
            if isinstance(exc, ssl.SSLError):  # with TLS 1.3, certificates are checked after the handshake
                waiting.set_exception(tls_refused(self.address, exc))
            else:
                waiting.set_exception(self._error(exc))
        self._waiting.clear()
        self._writable.set()
        if not self._closed.done():
            self._closed.set_result(None)

    def _error(self, exc: Exception | None) -> KafkaError:
        """Return the error for the requests without a response when the connection ends. ``exc`` is the transport's
        error."""
        code = ErrorCode.NETWORK_EXCEPTION
        text = f"{self.address}: {self._ended or exc or 'the broker closed the connection'}"
        if self._protocol is not None or (self._ended is None and (exc is None or isinstance(exc, ConnectionError))):
            return ConnectionClosed(code, text, self._protocol)
        return KafkaError(code, text)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # --- Calls by the client ---

    async def ask(self, request: Request, version: int) -> Response | None:
        """Send a request and return its response, or None if there will be none (``acks=0``). Requests are sent in the
        order of the calls.

        If the broker throttles the client, waits until the broker reads requests again, as Java's client does. If the
        session is about to expire (KIP-368), logs in again first.

        Raises ValueError if the request cannot be encoded, and KafkaError if the connection ends before the response or
        the new login fails. Has no timeout.
        """
        async with self._turn:
            while self.is_open and (wait_s := self.throttle_left_s) > 0:
                await asyncio.wait((self._closed,), timeout=wait_s)
            if self._login_due is not None and asyncio.get_running_loop().time() >= self._login_due:
                await self._log_in_again()
            response = await self._hand_over(request, version)
        return None if response is None else await response

    async def _ask(self, request: Request, version: int) -> Response | None:
        response = await self._hand_over(request, version)
        return None if response is None else await response

    async def _hand_over(self, request: Request, version: int) -> asyncio.Future[Response] | None:
        """Write a request to the connection. Returns the future of its response, or None if there will be none.

        Raises ConnectionClosed if the connection has ended.
        """
        await self._writable.wait()
        if not self.is_open:
            raise ConnectionClosed(ErrorCode.NETWORK_EXCEPTION, f"the connection to {self.address} has ended")
        correlation_id, frame = self._connection.send(request, version)
        waiting: asyncio.Future[Response] | None = None
        if correlation_id is not None:
            waiting = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        self._transport.writelines(frame)
        return waiting

    async def start(self, security: ClientSecurity) -> None:
        """Request the broker's versions, and log in. Raises KafkaError; ``NotAuthenticated`` if the broker rejects the
        login."""
        try:
            await self._negotiate()
        except ConnectionClosed as error:
            if security.tls is not None:
                raise
            raise ConnectionClosed(error.code, f"{error.message}{MAYBE_TLS}", error.protocol) from error
        self._login = security.login
        if self._login is not None:
            await self._log_in(self._login)

    async def _negotiate(self) -> None:
        """Request the broker's versions. A broker that does not support the client's ApiVersions version returns the
        versions that it supports (KIP-511)."""
        request = ApiVersionsRequest(client_software_name="parley", client_software_version=VERSION)
        response: Any = await self._ask(request, request.VERSIONS.max)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = next((api.max_version for api in response.api_keys if api.api_key == request.API_KEY), 0)
            response = await self._ask(request, min(known, request.VERSIONS.max))
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), f"{self.address} rejected ApiVersions")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    async def _log_in_again(self) -> None:
        """Log in again on the same connection. Other requests wait meanwhile, because during a login the broker accepts
        no others."""
        if self._login is None:
            return
        try:
            await self._log_in(self._login)
        except BaseException:
            self.abort()
            raise

    async def _log_in(self, login: Login) -> None:
        """Authenticate with SASL (KIP-43, KIP-152). Raises NotAuthenticated."""
        try:
            lifetime_ms = await self._exchange(login)
        except LoginRefused as error:
            text = f"{self.address}: {error}"
            raise NotAuthenticated(ErrorCode.SASL_AUTHENTICATION_FAILED, text) from error
        self._login_due = None
        if lifetime_ms > 0:
            due_s = lifetime_ms / 1000 * random.uniform(*_LIFETIME_USED)
            self._login_due = asyncio.get_running_loop().time() + due_s

    async def _exchange(self, login: Login) -> int:
        """Exchange the messages of a login. Returns the lifetime of the session in milliseconds; 0 if it is
        unlimited."""
        handshake = SaslHandshakeRequest(mechanism=login.mechanism)
        response: Any = await self._ask(handshake, self.version_for(handshake.API_KEY, handshake.VERSIONS))
        if response.error_code:
            offered = ", ".join(response.mechanisms) or "no mechanism"
            text = f"{self.address} does not accept sasl.mechanism={login.mechanism}; it offers {offered}"
            raise NotAuthenticated(ErrorCode(response.error_code), text)
        exchange, lifetime_ms = await login.exchange(self.address.host), 0
        with closing(exchange), suppress(StopIteration):
            token = next(exchange)
            while True:
                response = await self._authenticate(token)
                lifetime_ms = response.session_lifetime_ms
                token = exchange.send(response.auth_bytes)
        return lifetime_ms

    async def _authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        request = SaslAuthenticateRequest(auth_bytes=token)
        response: Any = await self._ask(request, self.version_for(request.API_KEY, request.VERSIONS))
        if response.error_code:
            text = f"{self.address} rejects the login: {response.error_message or 'no reason given'}"
            raise NotAuthenticated(ErrorCode(response.error_code), text)
        accepted: SaslAuthenticateResponse = response
        return accepted

    def version_for(self, api_key: int, ours: VersionRange) -> int:
        """Return the highest version that both sides support. Raises KafkaError (UNSUPPORTED_VERSION) if there is
        none."""
        name = APIS[api_key].name
        if api_key not in self.versions:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not support {name}")
        lowest, highest = self.versions[api_key]
        version = min(highest, ours.max)
        if version < max(lowest, ours.min):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} supports versions {lowest}-{highest} of {name}, but this client only {ours}",
            )
        return version

    def give_up(self) -> None:
        """Record that a response is overdue. Ends the connection if no caller waits for another response."""
        self.is_silent = True
        if all(waiting.done() for waiting in self._waiting.values()):
            self._end("a response was overdue")

    async def until_closed(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.shield(self._closed)

    async def close(self, limit: float) -> None:
        """Wait at most ``limit`` seconds until all written data is sent, then close the connection."""
        self._transport.close()
        try:
            async with asyncio.timeout(limit):
                await asyncio.shield(self._closed)
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        self.is_open = False
        self._transport.abort()
