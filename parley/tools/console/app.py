"""The console as an ASGI application: its routes, and the checks that every request must pass.

1. The Host header is an IP address, localhost, or a permitted name (against DNS rebinding).
2. A change needs the session's token in the header X-CSRF-Token. A read-only console rejects it with 403.
3. Every response forbids scripts from and requests to other origins, framing, and caching of data.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.resources import files
from ipaddress import ip_address, ip_network
from secrets import compare_digest
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.tools.console import (
    access_api,
    configs_api,
    groups_api,
    operations_api,
    overview_api,
    topics_api,
)
from parley.tools.console.answers import ApiRequest, error_of, text_of
from parley.tools.console.cluster_view import ClusterView
from parley.tools.console.connectors_api import ConnectorWindow
from parley.tools.console.coordination_api import StoreWindow
from parley.tools.console.messages_api import RecordWindow, produce
from parley.tools.console.sessions import COOKIE, STREAMS_MAX, Session, Sessions
from parley.tools.console.settings import ConsoleSettings
from parley.version import VERSION

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_TYPES: Final = {"html": "text/html; charset=utf-8", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_PREVIEWS: Final = frozenset({"reset"})
"""The last parts of the paths of POST requests that a read-only console allows without ``execute``: such a request is a
preview, and changes nothing."""

Handler = Callable[[ClusterView, ApiRequest], Awaitable[dict[str, Any]]]
Stream = Callable[[ClusterView, ApiRequest], AsyncIterator[dict[str, Any]]]


class Console:
    """The application with its sessions and connections. ``close`` ends and closes them."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._sessions = Sessions(settings)
        self._store = StoreWindow(settings)
        self._records = RecordWindow(settings.schemas)
        self._connectors = ConnectorWindow(settings.connect)
        self._assets = read_assets()
        self.app: ASGIApp = _Guarded(Starlette(routes=self._routes()), settings)

    def start(self) -> None:
        """Start to take samples of the cluster. Call this in the event loop that serves the application."""
        self._sessions.start()

    async def close(self) -> None:
        """End all sessions, and close all connections."""
        await self._sessions.close()
        await self._store.close()
        await self._records.close()
        await self._connectors.close()

    def _routes(self) -> list[Route]:
        get, change = self._get, self._change
        return [
            Route("/api/session", self._session),
            Route("/api/login", self._log_in, methods=["POST"]),
            Route("/api/logout", self._log_out, methods=["POST"]),
            get("/api/overview", overview_api.overview),
            get("/api/history", overview_api.history),
            self._stream("/api/live", lambda view, request: overview_api.live(view)),
            get("/api/topics", topics_api.topics),
            change("/api/topics", "POST", topics_api.create),
            get("/api/topics/{name}", topics_api.topic),
            change("/api/topics/{name}", "DELETE", topics_api.delete),
            change("/api/topics/{name}/partitions", "POST", topics_api.add_partitions),
            change("/api/topics/{name}/delete-records", "POST", topics_api.remove_records),
            get("/api/topics/{name}/messages", self._records.browse),
            change("/api/topics/{name}/messages", "POST", produce),
            self._stream("/api/topics/{name}/tail", self._records.tail),
            get("/api/configs/{kind}/{name}", configs_api.describe),
            change("/api/configs/{kind}/{name}", "PATCH", configs_api.change),
            get("/api/groups", groups_api.groups),
            get("/api/groups/{name:path}/detail", groups_api.group),
            change("/api/groups/{name:path}/reset", "POST", groups_api.reset_offsets),
            change("/api/groups/{name:path}/delete", "POST", groups_api.delete),
            get("/api/connectors", self._connectors.connectors),
            change("/api/connectors/{worker:int}/{name:path}/{action}", "POST", self._connectors.change),
            get("/api/transactions", operations_api.transactions),
            get("/api/features", operations_api.features),
            get("/api/log-dirs", operations_api.log_dirs),
            get("/api/work", operations_api.work),
            get("/api/users", access_api.users),
            change("/api/users", "POST", access_api.set_user),
            get("/api/acls", access_api.list_acls),
            change("/api/acls", "POST", access_api.add_acl),
            change("/api/acls/remove", "POST", access_api.remove_acl),
            get("/api/acls/why", access_api.why),
            get("/api/quotas", access_api.quotas),
            change("/api/quotas", "POST", access_api.set_quota),
            get("/api/coordination", self._store.overview),
            get("/api/coordination/tree", self._store.tree),
            change("/api/coordination/move", "POST", self._store.move),
            Route("/{path:path}", self._asset),
        ]

    # --- Requests ---

    def _get(self, path: str, handler: Handler) -> Route:
        async def handle(request: Request) -> Response:
            return await self._answered(request, handler)

        return Route(path, handle, methods=["GET"])

    def _change(self, path: str, method: str, handler: Handler) -> Route:
        async def handle(request: Request) -> Response:
            return await self._answered(request, handler, is_change=True)

        return Route(path, handle, methods=[method])

    async def _answered(self, request: Request, handler: Handler, *, is_change: bool = False) -> Response:
        api_request = ApiRequest(request.scope, request.receive)
        try:
            session = self._logged_in(request)
            if is_change:
                await self._check_change(session, api_request)
            assert session.view is not None
            return _json(await handler(session.view, api_request))
        except Exception as error:
            status, body = error_of(error)
            return _json(body, status)

    def _stream(self, path: str, events: Stream) -> Route:
        async def handle(request: Request) -> Response:
            try:
                session = self._logged_in(request)
                if session.streams >= STREAMS_MAX:
                    raise HTTPException(429, f"A session may have at most {STREAMS_MAX} live views. Close one.")
            except HTTPException as error:
                return _json({"error": error.detail}, error.status_code)
            assert session.view is not None
            found = events(session.view, ApiRequest(request.scope, request.receive))
            return StreamingResponse(_events(session, found), media_type="text/event-stream")

        return Route(path, handle, methods=["GET"])

    def _logged_in(self, request: Request) -> Session:
        session = self._sessions.find(request.cookies.get(COOKIE))
        if session is None or session.view is None:
            raise HTTPException(401, "Log in first.")
        return session

    async def _check_change(self, session: Session, request: ApiRequest) -> None:
        _check_token(session, request)
        if self._settings.read_only:
            is_preview = request.url.path.rpartition("/")[2] in _PREVIEWS
            if not is_preview or (await request.object()).get("execute") is True:
                raise HTTPException(403, "This console is read-only.")

    # --- Sessions ---

    async def _session(self, request: Request) -> Response:
        session = self._sessions.find(request.cookies.get(COOKIE)) or await self._sessions.begin()
        return self._with_cookie(request, session)

    async def _log_in(self, request: Request) -> Response:
        try:
            session = self._sessions.find(request.cookies.get(COOKIE))
            if session is None:
                raise HTTPException(403, "The session has expired. Reload the page.")
            _check_token(session, request)
            body = await ApiRequest(request.scope, request.receive).object()
            user, password = text_of(body, "user"), text_of(body, "password")
            session = await self._sessions.log_in(session, user, password, address_of(request))
        except Exception as error:
            status, data = error_of(error)
            return _json(data, status, error.headers if isinstance(error, HTTPException) else None)
        return self._with_cookie(request, session)

    async def _log_out(self, request: Request) -> Response:
        session = self._sessions.find(request.cookies.get(COOKIE))
        if session is not None:
            try:
                _check_token(session, request)
            except HTTPException as error:
                return _json({"error": error.detail}, error.status_code)
            await self._sessions.end(session)
        return self._with_cookie(request, await self._sessions.begin())

    def _with_cookie(self, request: Request, session: Session) -> Response:
        view = session.view
        response = _json(
            {
                "loginRequired": view is None,
                "canLogOut": self._settings.needs_login and view is not None,
                "user": view.user if view is not None else "",
                "csrf": session.csrf,
                "readOnly": self._settings.read_only,
                "bootstrap": self._settings.bootstrap,
                "connectors": self._settings.connect is not None,
                "mechanism": self._settings.mechanism if self._settings.needs_login else "",
                "version": VERSION,
            }
        )
        response.set_cookie(
            COOKIE, session.id, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
        )
        return response

    # --- The page ---

    async def _asset(self, request: Request) -> Response:
        path = request.path_params["path"] or "index.html"
        data = self._assets.get(path)
        if data is None or request.method not in ("GET", "HEAD"):
            return _json({"error": f"{request.url.path} does not exist."}, 404)
        cache = "no-cache" if path == "index.html" else "public, max-age=31536000, immutable"
        return Response(data, media_type=_TYPES[path.rpartition(".")[2]], headers={"cache-control": cache})


def read_assets() -> dict[str, bytes]:
    """Return the files of the built page, by path. The page is built from ``console/`` and is part of the package.
    Raises FileNotFoundError if it has not been built."""
    folder = files("parley.tools.console").joinpath("page")
    found = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    assets = folder.joinpath("assets")
    found |= {f"assets/{one.name}": one.read_bytes() for one in assets.iterdir()}
    return {name: data for name, data in found.items() if name.rpartition(".")[2] in _TYPES}


def _check_token(session: Session, request: Request) -> None:
    if not compare_digest(request.headers.get("x-csrf-token", "").encode(), session.csrf.encode()):
        raise HTTPException(403, "The request lacks this session's token. Reload the page.")


async def _events(session: Session, found: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    session.streams += 1
    try:
        async for one in found:
            yield f"data: {json.dumps(one)}\n\n"
    except Exception as error:
        yield f"event: failed\ndata: {json.dumps(error_of(error)[1])}\n\n"
    finally:
        session.streams -= 1


def address_of(request: Request) -> str:
    """Return the network address that stands for a client: the IP address, or its /64 for IPv6, because an IPv6 client
    has all addresses of such a network. Returns a host that is not an IP address unchanged, and an empty string if the
    client's address is unknown."""
    host = request.client.host if request.client is not None else ""
    try:
        found = ip_address(host)
    except ValueError:
        return host
    if found.version == 4 or found.ipv4_mapped is not None:
        return host
    return f"{ip_network((int(found), 64), strict=False)}"


def _json(data: dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(data, status, {"cache-control": "no-store", **(headers or {})})


class _Guarded:
    """An ASGI wrapper that checks the Host header of every request, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self._app = app
        self._hosts = settings.hosts | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        host = Request(scope).headers.get("host", "")
        if not self._is_permitted(host):
            refusal = _json({"error": f"{host!r} is not a name of this console; see --host-name."}, 421)
            return await refusal(scope, receive, sent)
        return await self._app(scope, receive, sent)

    def _is_permitted(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if name.lower() in self._hosts:
            return True
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True
