"""The interface of request handlers: the context that they receive, and what they return or raise.

A handler must not rely on a connection: another broker may have forwarded the request.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from parley.broker.security.principal import Principal
from parley.broker.security.sasl.login import Login
from parley.broker.security.session import ClientSession
from parley.protocol.schema import Response


@dataclass(slots=True)
class ConnectedClient:
    """The client at the other end of a connection. A login replaces ``session``.

    ``login`` is None on listeners without SASL.
    """

    session: ClientSession
    client_port: int
    login: Login | None = None
    on_throttle: Callable[[float], None] | None = None
    """Called with the number of seconds for which the connection must not be read (KIP-219). None for clients whose
    requests another broker forwarded: they have no connection here."""
    has_disconnected: bool = False
    is_abandoned: Callable[[], bool] | None = None
    """Returns True if the client has disconnected without the broker noticing, because the broker does not read from
    it. None without a connection."""
    on_disconnect: dict[Hashable, Callable[[], None]] = field(default_factory=dict)
    """Callbacks to run when the connection has ended. The key identifies the registration."""

    @property
    def client_host(self) -> str:
        """The client's address."""
        return self.session.host

    def has_left(self) -> bool:
        """Return True if the client has disconnected, whether or not the broker has noticed. May take a system
        call."""
        return self.has_disconnected or (self.is_abandoned is not None and self.is_abandoned())


class RequestContext:
    """The facts about a request that its handler gets in addition to the body. ``received_at`` is in monotonic seconds,
    ``size_bytes`` is the size of the request."""

    __slots__ = (
        "api_key",
        "api_version",
        "busy_s",
        "charge",
        "client",
        "client_id",
        "correlation_id",
        "has_many_elements",
        "is_from_follower",
        "needs_place",
        "received_at",
        "size_bytes",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        client: ConnectedClient,
        received_at: float,
        size_bytes: int = 0,
        busy_s: float = 0.0,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client = client
        self.received_at = received_at
        self.size_bytes = size_bytes
        self.busy_s = busy_s
        """How long, in seconds, the handler has occupied the event loop. Coroutines are measured only while there are
        quotas."""
        self.has_many_elements = False
        """True if a thread decoded the request, or if a coroutine handler has set it because the response is large. A
        thread then encodes the response."""
        self.needs_place = False
        """True if the request waits for a place among the large requests (``LargeRequests``)."""
        self.is_from_follower = False
        """True for a follower's fetch. The handler sets it."""
        self.charge: Any = None
        """The throttle time (a ``Charge``) that results from what the client's quotas counted before the response was
        ready; None if they counted nothing."""

    def spent(self, seconds: float) -> None:
        """Add ``seconds`` to ``busy_s``, the time during which the handler has occupied the event loop or a thread."""
        self.busy_s += seconds

    @property
    def session(self) -> ClientSession:
        """The identity of the client, and how it was authenticated."""
        return self.client.session

    @property
    def principal(self) -> Principal:
        """The identity of the client."""
        return self.client.session.principal

    @property
    def client_host(self) -> str:
        """The client's address."""
        return self.client.session.host

    @property
    def listener(self) -> str:
        """The name of the listener that accepted the connection."""
        return self.client.session.listener


MaybeResponse = Response | None
"""None if the client expects no response (a produce request with ``acks=0``)."""

Handler = Callable[[RequestContext, Any], Any]
"""Handles a request. Returns a ``MaybeResponse``, or an awaitable of one.

A coroutine is work in progress: it runs as a task, and no later request of the connection begins before the task is
done. A future (``Delayed``) is a response whose work is done and that only waits for an event: while a produce request
waits, the next produce request may begin. A coroutine may return a future when its work is done.

Raises ``KafkaError`` only for an error of the whole response, and ``Disconnect`` if the protocol requires the
connection to be closed.
"""


class Disconnect(Exception):
    """Raised to close the connection, usually without a response. The message is logged as the reason."""

    def __init__(self, reason: str, response: Response | None = None) -> None:
        """``response`` is sent before the connection is closed."""
        super().__init__(reason)
        self.response = response


class LoginFailed(Disconnect):
    """Raised to close the connection because the client could not log in. The failed login has already been counted and
    logged."""


class SessionExpired(Disconnect):
    """Raised to close the connection because the client has not renewed its login in time (KIP-368)."""
