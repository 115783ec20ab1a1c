"""The API as an ASGI application.

Rules:

1. Every answer but that of OPTIONS is JSON, errors too: ``{"error_code": 404, "message": "..."}``. A bug is answered
   with 500 and its text; its trace goes to the log.
2. Methods that a path does not have are answered with 405 and `Allow`, paths that are not there with 404, bodies that
   are not JSON with 415, clients that do not take JSON with 406.
3. The worker sends requests that only the leader of the group can serve on to the leader
   (`parley.pipeline.connect.rest.forwarding`).
4. An answer that takes longer than `REQUEST_SECONDS` is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.pipeline.connect.herder import Herder, HerderError, NotLeader, TimedOut
from parley.pipeline.connect.rest import bodies, openapi, shapes
from parley.pipeline.connect.rest.answers import Reply
from parley.pipeline.connect.rest.endpoints import ENDPOINTS, Endpoint
from parley.pipeline.connect.rest.forwarding import Forwarder
from parley.pipeline.connect.rest.login import BasicLogin, DemandLogin
from parley.pipeline.connect.rest.paths import ambiguity
from parley.version import VERSION

__all__ = ["REQUEST_SECONDS", "CrossOrigin", "application"]

REQUEST_SECONDS: Final = 90.0
_READY_WITHOUT: Final = frozenset({"/health"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CrossOrigin:
    """What pages of other sites may do (``access.control.allow.*``): nothing by default. Lists, separated by commas."""

    origins: str = ""
    methods: str = ""


def application(
    herder: Herder,
    forwarder: Forwarder | None = None,
    endpoints: Sequence[Endpoint] = ENDPOINTS,
    *,
    login: BasicLogin | None = None,
    cors: CrossOrigin = CrossOrigin(),
    request_seconds: float = REQUEST_SECONDS,
) -> Starlette:
    """The application that serves this herder.

    `forwarder` sends on what only the leader can do; without one such a request is refused with 409. `login` is
    demanded of every request that no other worker has signed.
    """
    paths: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    routes = [Route(path, _Resource(methods, herder, forwarder, request_seconds)) for path, methods in paths.items()]
    described = openapi.document(VERSION)
    routes.append(Route("/openapi.json", lambda _: JSONResponse(described)))
    middleware = [Middleware(_Paths)]
    if login is not None:
        middleware.append(Middleware(DemandLogin, login=login, endpoints=endpoints))
    if cors.origins:
        methods = [one.strip() for one in (cors.methods or "GET,POST,HEAD").split(",")]
        origins = [one.strip() for one in cors.origins.split(",")]
        middleware.insert(0, Middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods))
    served = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={HTTPException: _not_there},
    )
    served.router.redirect_slashes = False
    return served


class _Paths:
    """Takes the slash from the end of paths, and refuses those that are ambiguous."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            problem = ambiguity(scope.get("raw_path", b"").partition(b"?")[0])
            if problem is not None:
                await JSONResponse(shapes.error(400, problem), 400)(scope, receive, send)
                return
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        await self._app(scope, receive, send)


class _Resource:
    """Everything that can be done to one path; an ASGI application."""

    def __init__(
        self, methods: Mapping[str, Endpoint], herder: Herder, forwarder: Forwarder | None, seconds: float
    ) -> None:
        self._methods = methods
        self._herder = herder
        self._forwarder = forwarder
        self._seconds = seconds
        self._allow = ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._respond(Request(scope, receive))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return PlainTextResponse(self._allow, headers={"allow": self._allow})
        endpoint = self._methods.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            raise HTTPException(405, headers={"allow": self._allow})
        if not _takes_json(request.headers.get("accept", "")):
            raise HTTPException(406)
        if not self._herder.is_ready and endpoint.path not in _READY_WITHOUT:
            raise HTTPException(503, "Worker is still starting up.")
        try:
            async with asyncio.timeout(self._seconds):
                return _response(await self._answer(endpoint, request), request)
        except TimeoutError:
            return _refused(TimedOut("Request timed out"))
        except HerderError as error:
            return _refused(error)
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.url.path)
            return JSONResponse(shapes.error(500, str(error) or type(error).__name__), 500)

    async def _answer(self, endpoint: Endpoint, request: Request) -> Reply:
        if endpoint.body is None:
            bodies.refuse_other_kinds(request)
        try:
            return await endpoint.answer(request, self._herder)
        except NotLeader as elsewhere:
            if self._forwarder is None:
                raise
            return await self._forwarder.send(request, elsewhere)


def _takes_json(accept: str) -> bool:
    kinds = {one.partition(";")[0].strip().lower() for one in accept.split(",")}
    return bool(kinds & {"", "*/*", "application/*", "application/json"})


def _response(reply: Reply, request: Request) -> Response:
    headers = dict(reply.headers)
    if "location" in headers:
        headers["location"] = str(request.base_url).rstrip("/") + headers["location"]
    if reply.body is None:
        return Response(status_code=reply.status, headers=headers)
    return JSONResponse(reply.body, reply.status, headers)


_REASONS: Final = {404: "Not Found", 405: "Method Not Allowed", 406: "Not Acceptable"}


def _not_there(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = _REASONS.get(error.status_code)
    message = error.detail if reason is None else f"HTTP {error.status_code} {reason}"
    return JSONResponse(shapes.error(error.status_code, message), error.status_code, error.headers)


def _refused(error: HerderError) -> Response:
    return JSONResponse(shapes.error(error.status, str(error)), error.status)
