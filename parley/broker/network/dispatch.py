"""From a request's bytes to its handler, and from the answer back to bytes.

Rules of this module:

* What is not understood is not answered: a request of an unknown API, an unsupported version or with a malformed body
  raises :class:`Disconnect`, as Kafka closes such connections. The one exception is an ApiVersions request of an
  unsupported version, which is answered in version 0 with UNSUPPORTED_VERSION and the versions there are (KIP-511).
* A handler that raises costs its client one answer, not the connection: :meth:`Dispatcher.failure` fills the
  response's own error field. Only a response without such a field ends the connection.
* Nothing here waits or makes tasks, and nothing logs on the way of a request that succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
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

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Peer:
    """Who is at the other end of a connection, and on which listener it came in."""

    client_host: str
    client_port: int
    listener: str
    principal: str


@dataclass(slots=True)
class RequestContext:
    """What a handler knows of a request beside its body: ``size_bytes`` of it, received at monotonic seconds."""

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


Answer = Response | None
"""None: the client expects no answer (a produce request with ``acks=0``)."""

Handler = Callable[[RequestContext, Any], Any]
"""Answers a request: with an :data:`Answer` at once, or with an awaitable that ends with one.

A coroutine is work in progress: it is run as a task, and no later request of the connection begins before it is done.
A future (:class:`parley.broker.runtime.purgatory.Delayed`) is an answer that waits for an event, its work being done: behind
a waiting produce request the next produce request begins. A coroutine may end with a future when its work is done.

Raises :class:`~parley.protocol.errors.KafkaError` only for an error that fills the whole response, and
:class:`Disconnect` where the protocol's only answer is to close the connection.
"""


class Disconnect(Exception):
    """The connection must be closed without an answer; the text says why, for the log."""


class Route:
    """One API this broker serves: its handler, its classes, and what was counted of it."""

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
        self._failures = FailureLog(_log)

    def handle(
        self, peer: Peer, frame: memoryview, received_at: float
    ) -> tuple[RequestContext, list[Part] | Awaitable[Answer]]:
        """Decode a request, call its handler, and encode the answer if it is there at once (no parts: no answer).

        Raises :class:`Disconnect` for what the protocol cannot answer.
        """
        try:
            header = parse_request_header(frame)
            route = self.routes.get(header.api_key)
            if route is None:
                raise Disconnect(f"API key {header.api_key} is not served here")
            version = header.api_version
            if not route.min_version <= version <= route.max_version:
                return self._unsupported(peer, header, route, received_at)
            # What follows a request is let be, as in Kafka: librdkafka 2.16 asks for all topics (Metadata v13) with an
            # array count of the old form, which reads as a request for all topics and three bytes more.
            request, _ = decode_from(route.request, version, frame, header.body_offset)
        except MalformedMessage as malformed:
            raise Disconnect(f"malformed request: {malformed}") from malformed
        except Disconnect:
            raise
        except Exception as error:
            self._failures.report("a request cannot be read", error, received_at, peer=peer.client_host)
            raise Disconnect("the request could not be read") from error
        size = len(frame)
        context = RequestContext(
            header.api_key,
            version,
            header.correlation_id,
            header.client_id,
            peer.client_host,
            peer.client_port,
            peer.listener,
            peer.principal,
            received_at,
            size,
        )
        began = self.monotonic()
        try:
            answer = route.handler(context, request)
        except Exception as error:
            answer = self.failure(context, error)
        ended = self.monotonic()
        metrics = route.metrics
        metrics.requests += 1
        metrics.request_bytes += size
        metrics.queue_seconds += began - received_at
        metrics.local_seconds += ended - began
        if answer is None or isinstance(answer, Response):
            return context, self.encode(context, answer, ended)
        return context, answer

    async def work(self, context: RequestContext, work: Awaitable[Answer]) -> Answer | Disconnect:
        """Wait for a handler that is a coroutine. What it raises is answered, :class:`Disconnect` is returned."""
        try:
            try:
                return await work
            except Exception as error:
                return self.failure(context, error)
        except Disconnect as disconnect:
            return disconnect

    def encode(self, context: RequestContext, answer: Answer, now: float) -> list[Part]:
        """The frame of an answer that is given now, in parts to be sent one after another.

        Raises :class:`Disconnect`.
        """
        metrics = self.routes[context.api_key].metrics
        metrics.total_time.observe(int((now - context.received_at) * 1e6))
        if answer is None:
            return []
        try:
            parts = response_frame(answer, context.api_version, context.correlation_id)
        except Exception as error:  # the handler's answer cannot be said in this version
            answer = self.failure(context, error)
            try:
                parts = response_frame(answer, context.api_version, context.correlation_id)
            except ValueError:
                raise Disconnect(f"{type(answer).__name__} cannot carry an error in this version") from error
        for part in parts:
            metrics.response_bytes += len(part)
        return cast("list[Part]", parts)

    def failure(self, context: RequestContext, error: BaseException) -> Response:
        """The answer that reports ``error``, which is logged unless it is part of the protocol.

        Raises :class:`Disconnect` where the response has no error field of its own.
        """
        if isinstance(error, Disconnect):
            raise error
        route = self.routes[context.api_key]
        route.metrics.failures += 1
        if isinstance(error, KafkaError):
            return error_response(route.response, error.code, error.message)
        facts = {"version": context.api_version, "client": context.client_id}
        self._failures.report(f"{route.name} failed", error, self.monotonic(), **facts, peer=context.client_host)
        return error_response(route.response, ErrorCode.UNKNOWN_SERVER_ERROR, "")

    def _unsupported(
        self, peer: Peer, header: RequestHeader, route: Route, received_at: float
    ) -> tuple[RequestContext, list[Part]]:
        """An unsupported version: an answer where the client can read one, else :class:`Disconnect`."""
        versions = f"{route.min_version}-{route.max_version}"
        if header.api_key != ApiVersionsRequest.API_KEY:
            raise Disconnect(f"version {header.api_version} of {route.name} is not among {versions}")
        route.metrics.requests += 1
        context = RequestContext(
            header.api_key,
            0,
            header.correlation_id,
            header.client_id,
            peer.client_host,
            peer.client_port,
            peer.listener,
            peer.principal,
            received_at,
        )
        supported = ApiVersionsResponse.ApiVersion(
            api_key=route.api_key, min_version=route.min_version, max_version=route.max_version
        )
        answer = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[supported])
        return context, self.encode(context, answer, received_at)


def error_response(response: type[Response], code: ErrorCode, message: str) -> Response:
    """An answer that is nothing but an error. Raises :class:`Disconnect` where ``response`` has no field for it."""
    fields = {field.name for field in response.fields()}
    if "error_code" not in fields:
        raise Disconnect(f"{response.__name__} cannot carry the error {code.name}")
    answer: Any = response.blank()
    answer.error_code = code
    if "error_message" in fields:
        answer.error_message = message or code.message
    return answer  # type: ignore[no-any-return]
