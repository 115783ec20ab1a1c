"""HTTP to Consul's agents: one request at a time is sent once, and what came of it is said in our errors.

An agent that does not answer is left for the next one of the address. A request that certainly was not sent, or only
reads, is tried at each of them; a write that was sent is not.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
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

CALLS_MAX = 32
"""Connections for calls, in one client. With those for blocking queries (watch.py) well below an agent's 200."""
TIMEOUT_S = 10.0
"""For an answer. An agent without a leader waits 7 s for one before it says so."""
BODY_BYTES_MAX = 512 * 1024
"""What Consul takes as a transaction (``txn_max_req_len``)."""

_NOT_APPLIED = (
    "No cluster leader",
    "No known Consul servers",
    "node is not the leader",
    "failed to get conn",
    "timed out enqueuing operation",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A status that the caller has to look at (200, 404 or 409), the body, and X-Consul-Index, 0 without one."""

    status: int
    body: bytes
    index: int


class Untrusted(Unavailable):
    """Client and agent cannot agree on TLS: a matter of certificates, which waiting seldom mends."""


class _AnswerLost(Exception):
    """The connection broke after the request was sent; no exception of aiohttp's, or it would repeat a PUT."""


def refusal(status: int, text: str, *, writes: bool) -> CoordinationError:
    """What it means that a request was answered with this status, which is not one for the caller to look at.

    :param writes: the request may have changed something.
    """
    said = f"Consul answered {status}: {text.strip()[:300]}"
    if status in (401, 403) or "ACL not found" in text or "Permission denied" in text:
        return Unauthorized(f"{said} (is the ACL token right, and does its policy allow writing keys and sessions?)")
    if status == 413 and len(sizes := re.findall(r"[0-9]+", text)) >= 2:
        if "operations" in text:
            return TooManyOps(int(sizes[0]), int(sizes[1]))
        return TooLarge("the request to Consul", int(sizes[0]), int(sizes[1]))
    if status == 400 and "HTTPS" in text:
        return Untrusted(f"{said} (the address needs tls=true)")
    if writes and status >= 500 and status != 503 and not any(words in text for words in _NOT_APPLIED):
        return MaybeApplied(said)
    return Unavailable(said)


class Client:
    """Connections to the agents of an address. ``open`` first.

    :ivar endpoint: the agent in use.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._at = 0
        self._calls: aiohttp.ClientSession | None = None
        self._queries: aiohttp.ClientSession | None = None
        self._waits: set[asyncio.Timeout] = set()  # of queries under way

    @property
    def endpoint(self) -> str:
        return self._address.endpoints[self._at % len(self._address.endpoints)]

    async def open(self) -> None:
        """Be ready to connect.

        :raises BadConfig: the token or a certificate cannot be read.
        """
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
        """Close all connections; calls under way end with Closed. Idempotent."""
        calls, queries, self._calls, self._queries = self._calls, self._queries, None, None
        for session in (calls, queries):
            if session is not None:
                await session.close()

    async def call(
        self, method: str, path: str, body: bytes | None = None, *, writes: bool, timeout_s: float = TIMEOUT_S
    ) -> Answer:
        """Send a request and return an answer of status 200, 404 or 409.

        :param path: with the query, percent-encoded.
        :raises Unavailable: not applied; all agents of the address were tried.
        :raises MaybeApplied: it writes, was sent, and the answer was lost.
        :raises Unauthorized, LimitExceeded, Closed: as they say.
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

    async def query(self, path: str, wait_s: float) -> Answer:
        """Send a blocking query, which is answered when there is something new or after about ``wait_s``.

        :raises Unavailable: it was not answered. Other errors as ``call``.
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
            raise Unavailable(f"{self.endpoint} has left another request without an answer") from error
        except Unavailable:
            self._leave(at)
            raise
        finally:
            self._waits.discard(wait)

    def _interrupt_queries(self) -> None:
        """A call got no answer, so that queries may wait in vain for theirs, and for long: let them be asked anew."""
        now = asyncio.get_running_loop().time()
        waits, self._waits = self._waits, set()
        for wait in waits:
            wait.reschedule(now)

    def _leave(self, at: int) -> None:
        if at == self._at:  # else another call has left that agent already
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
    ) -> Answer:
        if session is None:
            raise Closed("the backend is not open")
        endpoint = self.endpoint
        limit = aiohttp.ClientTimeout(total=timeout_s, connect=min(timeout_s, TIMEOUT_S) * 0.9)
        try:
            async with session.request(
                method, URL(endpoint + path, encoded=True), data=body, timeout=limit, allow_redirects=False
            ) as response:
                answer = await response.read()
                if response.status in (200, 404, 409):
                    return Answer(response.status, answer, _index(response.headers.get("X-Consul-Index")))
                text = answer.decode("utf-8", "replace")
                raise refusal(response.status, text, writes=writes)
        except (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError) as error:
            raise Untrusted(f"{endpoint}: no TLS with it: {error}") from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unavailable(f"{endpoint} cannot be reached: {error}") from error
        except (_AnswerLost, aiohttp.ClientError, TimeoutError) as error:
            if session.closed:
                raise Closed("the backend was closed") from error
            if session is self._calls:
                self._interrupt_queries()
            if "ALERT" in str(error) and "CERTIFICATE" in str(error):  # TLS 1.3 says so after the request was sent
                raise Untrusted(f"{endpoint} asks for another certificate than ours: {error}") from error
            kind = MaybeApplied if writes else Unavailable
            raise kind(f"{endpoint} did not answer: {str(error) or type(error).__name__}") from error

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
        raise _AnswerLost(str(error) or type(error).__name__) from error


def _index(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
