"""The REST API as an ASGI application.

Rules:

1. Every response is JSON, except the response to OPTIONS. An error is ``{"error_code": 404, "message": "..."}``.
2. A method that a path does not support gets 405 and ``Allow``. An unknown path gets 404.
3. A slash at the end of a path is ignored. HEAD is GET without a body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.pipeline.connect.distributed import signing
from parley.pipeline.connect.distributed.herder import Herder
from parley.pipeline.connect.herder_results import HerderError
from parley.pipeline.connect.rest.endpoints import ADMIN, AMONG_WORKERS, CONNECT
from parley.pipeline.connect.rest.forwarding import Forwarder
from parley.pipeline.connect.rest.paths import ambiguity
from parley.pipeline.connect.rest.routing import problem_of
from parley.pipeline.service.login import BasicLogin, DemandLogin
from parley.pipeline.service.requests import error, message_of
from parley.version import VERSION

REQUEST_SECONDS: Final = 90.0
_SIGNED: Final = [(method, compile_path(path)[0]) for method, path in AMONG_WORKERS]


@dataclass(frozen=True, slots=True)
class CrossOrigin:
    """The requests that browsers may send for pages of other sites (``access.control.allow.*``): none by default. Lists
    are separated by commas.
    """

    origins: str = ""
    methods: str = ""


def application(
    herder: Herder | None,
    forwarder: Forwarder | None = None,
    routers: Sequence[APIRouter] = (CONNECT, ADMIN),
    *,
    login: BasicLogin | None = None,
    cors: CrossOrigin = CrossOrigin(),
    request_seconds: float = REQUEST_SECONDS,
) -> FastAPI:
    """Return the application that serves this herder, which may be None only to generate the documentation.

    ``forwarder`` forwards requests for the leader. Without it, they are rejected with 409. ``login`` is required for
    every request that is not signed by another worker.
    """
    app = FastAPI(
        title="Parley Connect",
        version=VERSION,
        description="The REST API of Kafka Connect, served by Parley's workers.",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
    )
    app.state.herder, app.state.forwarder, app.state.request_seconds = herder, forwarder, request_seconds
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _not_there)
    app.add_exception_handler(HerderError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    routes = [one for router in routers for one in router.routes if isinstance(one, APIRoute)]
    app.add_middleware(_Methods, routes=routes)
    if login is not None:
        app.add_middleware(DemandLogin, login=login, is_exempt=_is_signed)
    app.add_middleware(_Paths)
    if cors.origins:
        methods = [one.strip() for one in (cors.methods or "GET,POST,HEAD").split(",")]
        origins = [one.strip() for one in cors.origins.split(",")]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods)
    return app


def _operation_id(route: APIRoute) -> str:
    return "_".join([*map(str.lower, route.methods or ()), *re.findall(r"\w+", route.path)])


def _is_signed(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Return True for requests between workers. The herder checks their signatures."""
    return signing.is_signed(headers) and any(method == one and at.match(path) for one, at in _SIGNED)


class _Methods:
    """Serves HEAD and OPTIONS. Rejects a method that a path does not support, with the list of its methods."""

    def __init__(self, app: ASGIApp, routes: Sequence[APIRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            known = [
                method
                for one in self._routes
                if one.path_regex.match(scope["path"])
                for method in sorted(one.methods or ())
            ]
            wanted = "GET" if scope["method"] == "HEAD" else scope["method"]
            allow = ", ".join([*known, *(["HEAD"] if "GET" in known else []), "OPTIONS"])
            if known and wanted == "OPTIONS":
                app = PlainTextResponse(allow, headers={"allow": allow})
            elif known and wanted not in known:
                app = error(405, "HTTP 405 Method Not Allowed", {"allow": allow})
            scope = {**scope, "method": wanted}
        await app(scope, receive, send)


class _Paths:
    """Removes the slash from the end of paths, and rejects ambiguous paths."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            problem = ambiguity(scope.get("raw_path", b"").partition(b"?")[0])
            if problem is not None:
                app = error(400, problem)
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        await app(scope, receive, send)


def _not_there(_: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    return error(failure.status_code, message_of(failure), failure.headers)


def _refused(_: Request, failure: Exception) -> Response:
    assert isinstance(failure, HerderError)
    return error(failure.status, str(failure))


def _invalid(_: Request, failure: Exception) -> Response:
    assert isinstance(failure, RequestValidationError)
    found = failure.errors()
    return error(404, "HTTP 404 Not Found") if found[0]["loc"][0] == "path" else error(400, problem_of(found))
