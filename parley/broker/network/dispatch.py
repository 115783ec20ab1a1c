"""Decodes requests, calls their handlers, and encodes the responses.

Rules of this module:

* A request of an unknown API, of an unsupported version, or with a malformed body raises ``Disconnect``: the connection
  is closed, as in Kafka. The one exception is ApiVersions: an unsupported version gets a response in version 0, with
  UNSUPPORTED_VERSION and the supported versions (KIP-511).
* If a handler raises, the error goes into the response's top-level error field, and the connection stays open. If the
  response has no such field, the connection is closed.
* If a request contains a great many array elements, threads decode it and encode its response, so that the event loop
  can serve other clients. It counts as work in progress, like a coroutine handler. If its API has a ``Division``, it is
  handled in parts, each in its own turn of the event loop.
* This module creates no tasks, and a request that succeeds logs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, cast

from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metrics.catalogue.clients import RequestMetrics
from parley.broker.network.division import Divided, Division, divided, handled_in_parts
from parley.broker.network.large_requests import LargeRequests
from parley.broker.network.peers import is_broker
from parley.broker.network.request_context import (
    ConnectedClient,
    Disconnect,
    Handler,
    LoginFailed,
    MaybeResponse,
    RequestContext,
    SessionExpired,
)
from parley.broker.network.sending import Part
from parley.broker.network.unfinished_responses import UnfinishedResponses
from parley.broker.runtime.places import Place
from parley.broker.runtime.threads import LOOP_THREADS, Threads
from parley.broker.runtime.timed_steps import TimedSteps
from parley.broker.security.sasl.login import Login, LoginState
from parley.broker.security.session import ClientSession
from parley.protocol.codec import decode_from, encode, response_frame
from parley.protocol.connection import RequestHeader, parse_request_header
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage, TooManyElements
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from parley.protocol.schema import Request, Response
from parley.storage.resource_exhaustion import MEMORY, reserve_for

_log = logging.getLogger(__name__)

ON_LOOP_ELEMENTS_MAX: Final = 1000
"""The maximum number of array elements of a request that is decoded on the event loop. Decoding that many takes a few
milliseconds."""
DIVISIBLE_ELEMENTS_MAX: Final = 200
"""The maximum number of array elements of a request that is handled without dividing it, if it can be divided: handling
an element can take longer than decoding it."""
RAW: Final = -1
"""The API version in the context of a SASL token that is sent without a request header (after SaslHandshake v0)."""
R = TypeVar("R")


class Throttling(Protocol):
    """The part of the client quotas that the dispatcher uses."""

    @property
    def is_active(self) -> bool:
        """False if no client has a quota. The other methods are then not called."""

    def received(self, context: RequestContext, now_s: float) -> float:
        """Count a request whose response is not ready yet. Returns the number of seconds to throttle the client."""

    def charge(self, context: RequestContext, response: MaybeResponse, now_s: float) -> tuple[MaybeResponse, float]:
        """Count a completed request. Returns the response to send, with its throttle time set, and the number of
        seconds to throttle the client."""


class _Unlimited:
    is_active = False

    def received(self, context: RequestContext, now_s: float) -> float:
        return 0.0

    def charge(self, context: RequestContext, response: MaybeResponse, now_s: float) -> tuple[MaybeResponse, float]:
        return response, 0.0


UNLIMITED: Final = _Unlimited()
"""The throttling of a broker without quotas."""


class Route:
    """One API that this broker serves: its handler, its message classes and its metrics.

    ``on_loop_max`` is the maximum number of array elements of a request that is decoded on the event loop.
    ``only_reads`` is True if a request need not be handled once its client has disconnected.
    """

    __slots__ = (
        "api_key",
        "divisions",
        "follower_metrics",
        "handler",
        "max_version",
        "metrics",
        "min_version",
        "name",
        "on_loop_max",
        "only_reads",
        "request",
        "response",
    )

    def __init__(self, api_key: int, handler: Handler, divisions: tuple[Division, ...] = ()) -> None:
        api = APIS[api_key]
        self.api_key = api_key
        self.name = api.name
        self.handler = handler
        self.divisions = divisions
        self.only_reads = bool(divisions) and all(each.only_reads for each in divisions)
        self.on_loop_max = DIVISIBLE_ELEMENTS_MAX if divisions else ON_LOOP_ELEMENTS_MAX
        self.request: type[Request] = api.request
        self.response: type[Response] = api.response
        self.min_version = api.request.VERSIONS.min
        self.max_version = api.request.VERSIONS.max
        self.metrics = RequestMetrics()
        self.follower_metrics = RequestMetrics() if api_key == FetchRequest.API_KEY else self.metrics
        """The metrics of followers' fetches, which wait for different events than consumers' fetches do."""


class Dispatcher:
    """The table of routes, and the decoding and encoding around each handler."""

    def __init__(
        self,
        routes: Mapping[int, Handler],
        *,
        monotonic: Callable[[], float],
        throttling: Throttling = UNLIMITED,
        threads: Threads = LOOP_THREADS,
        divisions: Mapping[int, tuple[Division, ...]] = MappingProxyType({}),
        is_broker: Callable[[ClientSession], bool] = lambda session: True,
    ) -> None:
        """``divisions`` contains, by API key, the ways in which large requests can be divided.

        ``is_broker`` checks clients that identify themselves as brokers: their large requests need no place
        (``LargeRequests``).
        """
        self.routes = {
            api_key: Route(api_key, handler, divisions.get(api_key, ())) for api_key, handler in sorted(routes.items())
        }
        self._threads = threads
        self.monotonic = monotonic
        self._throttling = throttling
        self.only: tuple[bytes, ...] | None = None
        """The keys of the APIs whose requests may begin, as encoded in a request's first two bytes. All other requests
        wait. None means all APIs."""
        self._failures = FailureLog(_log)
        self._unfinished = UnfinishedResponses()
        self._large_requests = LargeRequests()
        self._is_broker = is_broker

    def serve_only(self, api_keys: Iterable[int]) -> None:
        """Serve only the requests of these APIs. Connections keep all other requests until ``serve_all``."""
        self.only = tuple(key.to_bytes(2, "big") for key in api_keys)

    def serve_all(self) -> None:
        """Start serving all requests. The caller must then call ``Listener.proceed``, which begins the requests that
        wait."""
        self.only = None

    def handle(
        self, client: ConnectedClient, frame: memoryview, received_at: float
    ) -> tuple[RequestContext, list[Part] | Awaitable[MaybeResponse]]:
        """Decode a request, call its handler, and encode the response if it is ready.

        Returns the context of the request, and the encoded response or an awaitable of the response (pass a coroutine
        to ``work``). An empty list means that the client expects no response. Raises Disconnect if the connection must
        be closed: the request cannot be decoded or is not allowed before the login, or its response cannot report the
        error.
        """
        try:
            login = client.login
            if login is not None and login.state is LoginState.RAW_TOKENS:
                return self._raw_token(client, frame, received_at)
            header = parse_request_header(frame)
            route = self.routes.get(header.api_key)
            if route is None:
                raise Disconnect(f"API key {header.api_key} is not supported")
            version = header.api_version
            if not route.min_version <= version <= route.max_version:
                if login is not None and login.state is not LoginState.COMPLETE and not login.may_ask_for_versions:
                    check_login(login, route, received_at)
                return self._unsupported(client, header, route, received_at)
            if login is not None:
                check_login(login, route, received_at)
            # Ignore bytes after the request, as Kafka does: librdkafka 2.16 requests all topics (Metadata v13) with an
            # array count in the old format, which decodes as a request for all topics and three extra bytes.
            context = RequestContext(
                header.api_key,
                version,
                header.correlation_id,
                header.client_id,
                client,
                received_at,
                len(frame),
            )
            try:
                request, _ = decode_from(route.request, version, frame, header.body_offset, route.on_loop_max)
            except TooManyElements:
                context.has_many_elements = True
                if is_broker(context.client_id) and self._is_broker(context.session):
                    return context, self._handle_many(context, route, frame, header.body_offset, None)
                context.needs_place = True
                return context, self._handle_with_place(context, route, frame, header.body_offset)
        except Disconnect:
            raise
        except Exception as error:
            raise self._unreadable(client, received_at, error) from error
        began = self.monotonic()
        try:
            response = route.handler(context, request)
        except Exception as error:
            response = self.failure(context, error)
        ended = self.monotonic()
        metrics = route.follower_metrics if context.is_from_follower else route.metrics
        metrics.requests += 1
        metrics.request_bytes += context.size_bytes
        metrics.queue_seconds += began - received_at
        metrics.local_seconds += ended - began
        context.busy_s = ended - began
        if response is None or isinstance(response, Response):
            return context, self.encode(context, response, ended)
        if self._throttling.is_active:
            self._received(context, ended)
        return context, response

    def _unreadable(self, client: ConnectedClient, received_at: float, error: Exception) -> Disconnect:
        """Return the ``Disconnect`` for a request that cannot be decoded."""
        if isinstance(error, MalformedMessage):
            return Disconnect(f"malformed request: {error}")
        if isinstance(error, MemoryError):  # the request has had no effect, so a retry is safe
            MEMORY.make_room()
            return Disconnect("no memory for the request")
        self._failures.report("a request could not be decoded", error, received_at, peer=client.client_host)
        return Disconnect("the request could not be decoded")

    async def _handle_with_place(
        self, context: RequestContext, route: Route, frame: memoryview, body_offset: int
    ) -> Any:
        """Handle a request with many elements when it has a place. If its client has disconnected by then, a request
        that only reads is dropped."""
        place = await self._large_requests.begin(context.session, len(frame))
        try:
            if context.client.has_disconnected and route.only_reads:
                return None
            return await self._handle_many(context, route, frame, body_offset, place)
        finally:
            place.end()

    async def _handle_many(
        self, context: RequestContext, route: Route, frame: memoryview, body_offset: int, place: Place | None
    ) -> Any:
        """Decode a request with many elements in a thread, then call its handler, once for each part if the request is
        divided."""
        began = self.monotonic()
        try:
            request, parts = await self._in_thread(
                context, lambda: _decoded(route, context.api_version, frame, body_offset)
            )
        except Exception as error:
            raise self._unreadable(context.client, context.received_at, error) from error
        if parts is not None:
            self._begun(context, len(frame), began)
            size_of = partial(self._size_of, context)
            return await handled_in_parts(context, route.handler, parts, self._unfinished, size_of, place)
        try:
            response = route.handler(context, request)
        finally:
            self._begun(context, len(frame), began).local_seconds += self.monotonic() - began
        return await response if asyncio.iscoroutine(response) else response

    async def _size_of(self, context: RequestContext, part: Response) -> int:
        """Return the encoded size of a part of a response.

        The whole response is encoded again when it is complete, which takes 0.2 microseconds per element. Encoding each
        element once and keeping its bytes would take longer.
        """
        return await self._in_thread(context, lambda: len(encode(part, context.api_version)))

    def _begun(self, context: RequestContext, size_bytes: int, began: float) -> RequestMetrics:
        """Count a request whose handler began at ``began``. The handler must already have set ``is_from_follower``."""
        metrics = self.metrics_of(context)
        metrics.requests += 1
        metrics.request_bytes += size_bytes
        metrics.queue_seconds += began - context.received_at
        return metrics

    async def _in_thread(self, context: RequestContext, call: Callable[[], R]) -> R:
        """Run ``call`` in the thread for requests with many elements, and charge its time to the client's quotas."""

        def timed() -> R:
            began = self.monotonic()
            try:
                return call()
            finally:
                context.spent(self.monotonic() - began)

        return await asyncio.get_running_loop().run_in_executor(self._threads.messages, timed)

    async def work(
        self, context: RequestContext, work: Awaitable[MaybeResponse]
    ) -> MaybeResponse | list[Part] | Disconnect:
        """Await a coroutine handler and return its response, already framed if a thread has encoded it.

        If the handler raises, return the error response, or the ``Disconnect``.
        """
        if self._throttling.is_active:
            work = TimedSteps(work, self.monotonic, context.spent)
        try:
            try:
                response = await work
            except Exception as error:
                return self.failure(context, error)
            if context.has_many_elements and isinstance(response, Response):
                response = self._ended(context, response, self.monotonic())
                return await self._in_thread(context, lambda: self._framed(context, response))
        except Disconnect as disconnect:
            return disconnect
        return response

    def encode(self, context: RequestContext, response: MaybeResponse, now: float) -> list[Part]:
        """Return the frame of a response, as parts to send in order.

        Raises Disconnect if neither the response nor an error in its place can be encoded.
        """
        return self._framed(context, self._ended(context, response, now))

    def _ended(self, context: RequestContext, response: MaybeResponse, now: float) -> MaybeResponse:
        """Count a completed request for the metrics and the client's quotas. Returns the response to send."""
        metrics = self.metrics_of(context)
        metrics.total_time.observe(int((now - context.received_at) * 1e6))
        return self._charge(context, response, now) if self._throttling.is_active else response

    def _framed(self, context: RequestContext, response: MaybeResponse) -> list[Part]:
        if response is None:
            return []
        if context.api_version == RAW:
            return _raw_frame(response)
        metrics = self.metrics_of(context)
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

    def _received(self, context: RequestContext, now: float) -> None:
        """Count a request whose response is pending, and throttle the client if it exceeds its quotas."""
        try:
            throttle_s = self._throttling.received(context, now)
        except Exception as error:
            self._failures.report("a request was not counted for quotas", error, now, client=context.client_id)
            return
        _throttle(context, throttle_s)

    def _charge(self, context: RequestContext, response: MaybeResponse, now: float) -> MaybeResponse:
        """Count the request for the client's quotas, and throttle the client if it exceeds them."""
        try:
            response, throttle_s = self._throttling.charge(context, response, now)
        except Exception as error:  # send the response even if it cannot be counted
            self._failures.report("a request was not counted for quotas", error, now, client=context.client_id)
            return response
        self.metrics_of(context).throttle_seconds += throttle_s
        _throttle(context, throttle_s)
        return response

    def metrics_of(self, context: RequestContext) -> RequestMetrics:
        """Return the metrics of the request's API. Fetches of followers have separate metrics."""
        route = self.routes[context.api_key]
        return route.follower_metrics if context.is_from_follower else route.metrics

    def failure(self, context: RequestContext, error: BaseException) -> Response:
        """Return the response that reports ``error``. Errors other than ``KafkaError`` are logged.

        Raises Disconnect if the response has no top-level error field, or if the broker has run out of memory or file
        descriptors: there is no error code for that.
        """
        if isinstance(error, Disconnect):
            raise error
        route = self.routes[context.api_key]
        self.metrics_of(context).failures += 1
        if isinstance(error, KafkaError):
            return error_response(route.response, error.code, error.message)
        facts = {"version": context.api_version, "client": context.client_id}
        self._failures.report(f"{route.name} failed", error, self.monotonic(), **facts, peer=context.client_host)
        if (reserve := reserve_for(error)) is not None:
            raise Disconnect(f"the broker has run out of {reserve.name}")  # clients retry the request
        return error_response(route.response, ErrorCode.UNKNOWN_SERVER_ERROR, "")

    def _raw_token(
        self, client: ConnectedClient, frame: memoryview, received_at: float
    ) -> tuple[RequestContext, list[Part] | Awaitable[MaybeResponse]]:
        """Handle a frame that is a SASL token without a request header (after SaslHandshake v0)."""
        route = self.routes[SaslAuthenticateRequest.API_KEY]
        context = RequestContext(route.api_key, RAW, 0, None, client, received_at, len(frame))
        route.metrics.requests += 1
        response = route.handler(context, SaslAuthenticateRequest(auth_bytes=bytes(frame)))
        if isinstance(response, Response):
            return context, self.encode(context, response, self.monotonic())
        return context, response

    def _unsupported(
        self, client: ConnectedClient, header: RequestHeader, route: Route, received_at: float
    ) -> tuple[RequestContext, list[Part]]:
        """Return the response to an ApiVersions request of an unsupported version. Raises Disconnect for other APIs."""
        versions = f"{route.min_version}-{route.max_version}"
        if header.api_key != ApiVersionsRequest.API_KEY:
            raise Disconnect(f"{route.name} v{header.api_version} is not supported (supported: {versions})")
        route.metrics.requests += 1
        context = RequestContext(header.api_key, 0, header.correlation_id, header.client_id, client, received_at)
        supported = ApiVersionsResponse.ApiVersion(
            api_key=route.api_key, min_version=route.min_version, max_version=route.max_version
        )
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[supported])
        return context, self.encode(context, response, received_at)


def _decoded(route: Route, version: int, frame: memoryview, body_offset: int) -> tuple[Any, Divided | None]:
    """Decode a request. Returns the request, and its parts if it can be divided."""
    request, _ = decode_from(route.request, version, frame, body_offset)
    return request, divided(request, route.divisions)


def _throttle(context: RequestContext, seconds: float) -> None:
    if seconds > 0 and context.client.on_throttle is not None:
        context.client.on_throttle(seconds)


def check_login(login: Login, route: Route, now: float) -> None:
    """Raise LoginFailed if the client must log in before it sends a request of this API. The login is then refused.

    Raises SessionExpired if the client's session has expired at ``now`` (monotonic seconds) and the request does not
    start a re-authentication. Records in ``login`` an ApiVersions request that is allowed before the login.
    """
    if login.state is LoginState.COMPLETE:
        if login.has_expired(now) and route.api_key != SaslHandshakeRequest.API_KEY:
            raise SessionExpired("the session has expired, and the client has not re-authenticated")
    elif route.api_key == ApiVersionsRequest.API_KEY and login.may_ask_for_versions:
        login.versions()
    elif route.api_key not in (SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY):
        login.refuse(f"unexpected {route.name} request during the login")
        raise LoginFailed(f"unexpected {route.name} request during the login")


def _raw_frame(response: Response) -> list[Part]:
    """Return the frame of a SASL token without a response header."""
    assert isinstance(response, SaslAuthenticateResponse)
    return [len(response.auth_bytes).to_bytes(4, "big") + response.auth_bytes]


def error_response(response: type[Response], code: ErrorCode, message: str) -> Response:
    """Return a response that contains only an error. An empty ``message`` means the code's default message.

    Raises Disconnect if ``response`` has no error field.
    """
    fields = {field.name for field in response.fields()}
    if "error_code" not in fields:
        raise Disconnect(f"{response.__name__} cannot carry the error {code.name}")
    blank: Any = response.blank()
    blank.error_code = code
    if "error_message" in fields:
        blank.error_message = message or code.message
    return blank  # type: ignore[no-any-return]
