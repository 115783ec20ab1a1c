"""HTTP requests to Consul's agents. Failures are raised as coordination errors.

If an agent does not respond, the client switches to the next agent of the address. A request that was certainly not
sent, or that only reads, is tried at each agent. A write that was sent is not repeated.
"""

from __future__ import annotations

import asyncio
import re
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from parley.consensus.consul.address import Address
from parley.consensus.errors import (
    Closed,
    CoordinationError,
    MaybeApplied,
    TooLarge,
    TooManyOps,
    Unauthorized,
    Unavailable,
)
from parley.light_dataclasses import dataclass

CALLS_MAX = 32
"""The maximum number of a client's connections for calls. Even with the connections for blocking queries (watch.py), a
client stays far below an agent's limit of 200 connections."""
TIMEOUT_S = 10.0
"""How long to wait for a response. If the Consul cluster has no leader, an agent waits 7 s for one before it responds
with an error."""
RESPONSE_BYTES_MAX = 256 << 20
"""The largest response to accept. Consul has no pages: it sends everything below a prefix in one response. The state of
100,000 partitions takes less than 100 MB."""

_NOT_APPLIED = (
    "No cluster leader",
    "No known Consul servers",
    "node is not the leader",
    "failed to get conn",
    "timed out enqueuing operation",
)


@dataclass(frozen=True, slots=True)
class Response:
    """A response for the caller to evaluate (status 200, 404 or 409). ``index`` is X-Consul-Index, or 0."""

    status: int
    body: bytes
    index: int


class Untrusted(Unavailable):
    """The TLS handshake between client and agent failed. The certificates are wrong, so waiting rarely helps."""


class _ResponseLost(Exception):
    """The connection broke after the request was sent. Not an aiohttp exception, because those make aiohttp repeat a
    PUT."""


def refusal(status: int, text: str, *, writes: bool) -> CoordinationError:
    """Return the error for a response with a status other than 200, 404 and 409.

    ``writes`` is True if the request may have changed something.
    """
    summary = f"Consul responded with {status}: {text.strip()[:300]}"
    if status in (401, 403) or "ACL not found" in text or "Permission denied" in text:
        return Unauthorized(f"{summary} (is the ACL token right, and does its policy allow writing keys and sessions?)")
    if status == 413 and len(sizes := re.findall(r"[0-9]+", text)) >= 2:
        if "operations" in text:
            return TooManyOps(int(sizes[0]), int(sizes[1]))
        return TooLarge("the request to Consul", int(sizes[0]), int(sizes[1]))
    if status == 400 and "HTTPS" in text:
        return Untrusted(f"{summary} (the address needs tls=true)")
    if writes and status >= 500 and status != 503 and not any(words in text for words in _NOT_APPLIED):
        return MaybeApplied(summary)
    return Unavailable(summary)


class Client:
    """Connections to the agents of an address. Call ``open`` first."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._at = 0
        self._calls: aiohttp.ClientSession | None = None
        self._queries: aiohttp.ClientSession | None = None
        self._waits: set[asyncio.Timeout] = set()  # the timeouts of pending queries

    @property
    def endpoint(self) -> str:
        """The HTTP address of the agent in use."""
        return self._address.endpoints[self._at % len(self._address.endpoints)]

    async def open(self) -> None:
        """Read the token and the certificates. Raises BadConfig if one of them cannot be used."""
        token = await asyncio.to_thread(self._address.read_token)
        tls = await asyncio.to_thread(self._address.tls_context)

        def session(connections: int) -> aiohttp.ClientSession:
            return aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=connections, ssl=tls or True),
                headers={"X-Consul-Token": token} if token else None,
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_send_once,),
            )

        self._calls, self._queries = session(CALLS_MAX), session(0)

    async def close(self) -> None:
        """Close all connections. Calls in progress raise Closed. Idempotent."""
        calls, queries, self._calls, self._queries = self._calls, self._queries, None, None
        for session in (calls, queries):
            if session is not None:
                await session.close()

    async def call(
        self, method: str, path: str, body: bytes | None = None, *, writes: bool, timeout_s: float = TIMEOUT_S
    ) -> Response:
        """Send a request and return a response with status 200, 404 or 409.

        ``path`` includes the query and is percent-encoded. Raises Unavailable if the request was not applied, after
        trying all agents of the address. Raises MaybeApplied if a write was sent and the response was lost. May also
        raise Unauthorized, LimitExceeded or Closed.
        """
        for attempt in range(len(self._address.endpoints), 0, -1):
            at = self._at
            try:
                return await self._send(self._calls, method, path, body, writes=writes, timeout_s=timeout_s)
            except Unavailable:
                self._leave(at)
                if attempt == 1:
                    raise
            except MaybeApplied:
                self._leave(at)
                raise
        raise AssertionError("an address has an endpoint")

    async def query(self, path: str, wait_s: float) -> Response:
        """Send a blocking query. Consul responds when something has changed, or after about ``wait_s`` seconds.

        Raises Unavailable if there is no response. Raises the other errors of ``call``.
        """
        at = self._at
        path = f"{path}&wait={round(wait_s * 1000)}ms"
        timeout_s = wait_s * 17 / 16 + TIMEOUT_S  # Consul waits up to a sixteenth longer
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waits.add(wait)
                return await self._send(self._queries, "GET", path, None, writes=False, timeout_s=timeout_s)
        except TimeoutError as error:
            raise Unavailable(f"{self.endpoint} has not responded to another request") from error
        except Unavailable:
            self._leave(at)
            raise
        finally:
            self._waits.discard(wait)

    def _interrupt_queries(self) -> None:
        """End all blocking queries, so that they are sent again: a call got no response, so they may be waiting in
        vain."""
        now = asyncio.get_running_loop().time()
        waits, self._waits = self._waits, set()
        for wait in waits:
            wait.reschedule(now)

    def _leave(self, at: int) -> None:
        if at == self._at:  # otherwise another call has already left that agent
            self._at = (at + 1) % len(self._address.endpoints)

    async def _send(
        self,
        session: aiohttp.ClientSession | None,
        method: str,
        path: str,
        body: bytes | None,
        *,
        writes: bool,
        timeout_s: float,
    ) -> Response:
        if session is None:
            raise Closed("the backend is not open")
        endpoint = self.endpoint
        limit = aiohttp.ClientTimeout(total=timeout_s, connect=min(timeout_s, TIMEOUT_S) * 0.9)
        try:
            async with session.request(
                method, URL(endpoint + path, encoded=True), data=body, timeout=limit, allow_redirects=False
            ) as response:
                content = await _body_of(response, writes=writes)
                if response.status in (200, 404, 409):
                    return Response(response.status, content, _index(response.headers.get("X-Consul-Index")))
                text = content.decode("utf-8", "replace")
                raise refusal(response.status, text, writes=writes)
        except (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError) as error:
            raise Untrusted(f"{endpoint}: the TLS handshake failed: {error}") from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unavailable(f"{endpoint} cannot be reached: {error}") from error
        except (_ResponseLost, aiohttp.ClientError, TimeoutError) as error:
            if session.closed:
                raise Closed("the backend was closed") from error
            if session is self._calls:
                self._interrupt_queries()
            if "ALERT" in str(error) and "CERTIFICATE" in str(error):  # TLS 1.3 reports it after the request was sent
                raise Untrusted(f"{endpoint} does not accept the client certificate: {error}") from error
            kind = MaybeApplied if writes else Unavailable
            raise kind(f"{endpoint} did not respond: {str(error) or type(error).__name__}") from error

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ResponseLost(str(error) or type(error).__name__) from error


async def _body_of(response: aiohttp.ClientResponse, *, writes: bool) -> bytes:
    """Return the body of a response. Raises MaybeApplied or Unavailable if it is longer than ``RESPONSE_BYTES_MAX``."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > RESPONSE_BYTES_MAX:
            kind = MaybeApplied if writes else Unavailable
            raise kind(f"{response.url.origin()} sent a response of more than {RESPONSE_BYTES_MAX:,} bytes")
    return bytes(body)


def _index(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
