"""From the bytes of a request to its handler, and from the response back to bytes.

Rules of this module:

* A request of an unknown API, of an unsupported version, or with a malformed body raises ``Disconnect``: Kafka closes
  such connections, too. The one exception is ApiVersions: an unsupported version gets a response in version 0, with
  UNSUPPORTED_VERSION and the supported versions (KIP-511).
* If a handler raises, the error goes into the response's own error field, and the connection stays. A response without
  such a field ends the connection.
* Nothing here waits or creates tasks, and a request that succeeds logs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metrics import RequestMetrics
from parley.broker.network.sending import Part
from parley.protocol.codec import decode_from, response_frame
from parley.protocol.connection import RequestHeader, parse_request_header
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from parley.protocol.schema import Request, Response
from parley.storage.shortage import MEMORY, reserve_for

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ConnectedClient:
    """The client at the other end of a connection, and the listener that accepted it."""

    client_host: str
    client_port: int
    listener: str
    principal: str


@dataclass(slots=True)
class RequestContext:
    """What a handler knows about a request besides its body. ``received_at`` is in monotonic seconds."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    client_port: int
    listener: str
    principal: str
    received_at: float
    size_bytes: int = 0


MaybeResponse = Response | None
"""None if the client expects no response (a produce request with ``acks=0``)."""

Handler = Callable[[RequestContext, Any], Any]
"""Handles a request. Returns a ``MaybeResponse``, or an awaitable of one.

A coroutine is work in progress: it runs as a task, and no later request of the connection begins before it is done.
A future (``Delayed``) is a response whose work is done and that waits for an event: behind a waiting produce request
the next produce request begins. A coroutine may return a future when its work is done.

Raises ``KafkaError`` only for an error that fills the whole response, and ``Disconnect`` if the protocol can only
close the connection.
"""


class Disconnect(Exception):
    """The connection must be closed without a response. The text says why, for the log."""


class Route:
    """One API that this broker serves: its handler, its message classes and its metrics."""

    __slots__ = ("api_key", "handler", "max_version", "metrics", "min_version", "name", "request", "response")

    def __init__(self, api_key: int, handler: Handler) -> None:
        api = APIS[api_key]
        self.api_key = api_key
        self.name = api.name
        self.handler = handler
        self.request: type[Request] = api.request
        self.response: type[Response] = api.response
        self.min_version = api.request.VERSIONS.min
        self.max_version = api.request.VERSIONS.max
        self.metrics = RequestMetrics()


class Dispatcher:
    """The table of routes, and the decoding and encoding around each handler."""

    def __init__(self, routes: Mapping[int, Handler], *, monotonic: Callable[[], float]) -> None:
        self.routes = {api_key: Route(api_key, handler) for api_key, handler in sorted(routes.items())}
        self.monotonic = monotonic
        self.only: tuple[bytes, ...] | None = None
        """The keys of the APIs whose requests begin, as in a request's first two bytes; the others wait. None: all."""
        self._failures = FailureLog(_log)

    def serve_only(self, api_keys: Iterable[int]) -> None:
        """Let only the requests of these APIs begin. Connections keep the others until ``serve_all``."""
        self.only = tuple(key.to_bytes(2, "big") for key in api_keys)

    def serve_all(self) -> None:
        """Let all requests begin. The caller then calls ``Listener.proceed`` for the requests that wait."""
        self.only = None

    def handle(
        self, client: ConnectedClient, frame: memoryview, received_at: float
    ) -> tuple[RequestContext, list[Part] | Awaitable[MaybeResponse]]:
        """Decode a request, call its handler, and encode the response if there is one at once (no parts: no response).

        Raises Disconnect if the protocol has no response for the request.
        """
        try:
            header = parse_request_header(frame)
            route = self.routes.get(header.api_key)
            if route is None:
                raise Disconnect(f"API key {header.api_key} is not served here")
            version = header.api_version
            if not route.min_version <= version <= route.max_version:
                return self._unsupported(client, header, route, received_at)
            # Bytes after the request are ignored, as in Kafka: librdkafka 2.16 asks for all topics (Metadata v13) with
            # an array count of the old form, which reads as a request for all topics and three more bytes.
            request, _ = decode_from(route.request, version, frame, header.body_offset)
        except MalformedMessage as malformed:
            raise Disconnect(f"malformed request: {malformed}") from malformed
        except Disconnect:
            raise
        except MemoryError as error:  # nothing has been done yet
            MEMORY.make_room()
            raise Disconnect("no memory for the request") from error
        except Exception as error:
            self._failures.report("a request cannot be read", error, received_at, peer=client.client_host)
            raise Disconnect("the request could not be read") from error
        size = len(frame)
        context = RequestContext(
            header.api_key,
            version,
            header.correlation_id,
            header.client_id,
            client.client_host,
            client.client_port,
            client.listener,
            client.principal,
            received_at,
            size,
        )
        began = self.monotonic()
        try:
            response = route.handler(context, request)
        except Exception as error:
            response = self.failure(context, error)
        ended = self.monotonic()
        metrics = route.metrics
        metrics.requests += 1
        metrics.request_bytes += size
        metrics.queue_seconds += began - received_at
        metrics.local_seconds += ended - began
        if response is None or isinstance(response, Response):
            return context, self.encode(context, response, ended)
        return context, response

    async def work(self, context: RequestContext, work: Awaitable[MaybeResponse]) -> MaybeResponse | Disconnect:
        """Await a handler that is a coroutine. Returns an error response if it raises, or the ``Disconnect`` that it
        raised."""
        try:
            try:
                return await work
            except Exception as error:
                return self.failure(context, error)
        except Disconnect as disconnect:
            return disconnect

    def encode(self, context: RequestContext, response: MaybeResponse, now: float) -> list[Part]:
        """Return the frame of a response, in parts to be sent one after another.

        Raises Disconnect if the response cannot be encoded, nor an error in its place.
        """
        metrics = self.routes[context.api_key].metrics
        metrics.total_time.observe(int((now - context.received_at) * 1e6))
        if response is None:
            return []
        try:
            parts = response_frame(response, context.api_version, context.correlation_id)
        except Exception as error:  # this version cannot express the handler's response
            response = self.failure(context, error)
            try:
                parts = response_frame(response, context.api_version, context.correlation_id)
            except ValueError:
                raise Disconnect(f"{type(response).__name__} cannot carry an error in this version") from error
        for part in parts:
            metrics.response_bytes += len(part)
        return cast("list[Part]", parts)

    def failure(self, context: RequestContext, error: BaseException) -> Response:
        """Return the response that reports ``error``. An error that is not the protocol's is logged.

        Raises Disconnect if the response has no error field of its own, or if the broker has run out of memory or file
        descriptors: no error code says that.
        """
        if isinstance(error, Disconnect):
            raise error
        route = self.routes[context.api_key]
        route.metrics.failures += 1
        if isinstance(error, KafkaError):
            return error_response(route.response, error.code, error.message)
        facts = {"version": context.api_version, "client": context.client_id}
        self._failures.report(f"{route.name} failed", error, self.monotonic(), **facts, peer=context.client_host)
        if (reserve := reserve_for(error)) is not None:
            raise Disconnect(f"the broker has run out of {reserve.name}")  # clients repeat the request
        return error_response(route.response, ErrorCode.UNKNOWN_SERVER_ERROR, "")

    def _unsupported(
        self, client: ConnectedClient, header: RequestHeader, route: Route, received_at: float
    ) -> tuple[RequestContext, list[Part]]:
        """Return the response to an ApiVersions request of an unsupported version. Raises Disconnect for other APIs."""
        versions = f"{route.min_version}-{route.max_version}"
        if header.api_key != ApiVersionsRequest.API_KEY:
            raise Disconnect(f"version {header.api_version} of {route.name} is not among {versions}")
        route.metrics.requests += 1
        context = RequestContext(
            header.api_key,
            0,
            header.correlation_id,
            header.client_id,
            client.client_host,
            client.client_port,
            client.listener,
            client.principal,
            received_at,
        )
        supported = ApiVersionsResponse.ApiVersion(
            api_key=route.api_key, min_version=route.min_version, max_version=route.max_version
        )
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[supported])
        return context, self.encode(context, response, received_at)


def error_response(response: type[Response], code: ErrorCode, message: str) -> Response:
    """Return a response that is only an error. Raises Disconnect if ``response`` has no field for it."""
    fields = {field.name for field in response.fields()}
    if "error_code" not in fields:
        raise Disconnect(f"{response.__name__} cannot carry the error {code.name}")
    blank: Any = response.blank()
    blank.error_code = code
    if "error_message" in fields:
        blank.error_message = message or code.message
    return blank  # type: ignore[no-any-return]
