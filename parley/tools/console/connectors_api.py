"""Connectors of Connect workers: the API that shows their state, and pauses, resumes and restarts them. A mirror of
MirrorMaker consists of three connectors.

Connect has no permissions of individual users: the console is one client of its REST API. The console therefore shows
connectors only to users with the permission Describe on the Kafka cluster, and changes them only for users with Alter.
The browser names a worker by its position in the console's settings, never by a URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from starlette.exceptions import HTTPException

from parley.broker.security.operations import Operation
from parley.protocol.messages.metadata import DescribeClusterRequest
from parley.tools.cli.cluster_client import TIMEOUT_MS
from parley.tools.cli.groups import every_type, tables
from parley.tools.console.answers import ApiRequest, matching, page
from parley.tools.console.cluster_view import ClusterView, optional
from parley.tools.console.settings import ConnectSettings

_TIMEOUT_S: Final = 10.0
_CONNECTORS_MAX: Final = 1000
"""The maximum number of connectors shown for one group of workers."""
_TRACE_MAX: Final = 4000
_GROUP: Final = "connect-"
"""The prefix of a sink's consumer group. The rest of its name is the connector's name."""
_ACTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "pause": ("PUT", "pause"),
    "resume": ("PUT", "resume"),
    "restart": ("POST", "restart?includeTasks=true&onlyFailed=false"),
    "restart-failed": ("POST", "restart?includeTasks=true&onlyFailed=true"),
}


class ConnectorWindow:
    """The console's client of Connect workers, opened at the first use. ``close`` closes it."""

    def __init__(self, settings: ConnectSettings | None) -> None:
        self._settings = settings
        self._client: Any = None

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def connectors(self, view: ClusterView, request: ApiRequest) -> dict[str, Any]:
        """Return the workers, and a page of their connectors with the lag of sinks. Query: search, troubled (only
        connectors that have failed, or have a failed task), page, size. A worker that does not respond has an
        ``error``."""
        await self._permit(view, Operation.DESCRIBE)
        groups = await asyncio.gather(*(self._group(view, place) for place in range(len(self._urls))))
        found = matching(request, [one for group in groups for one in group["connectors"]], lambda one: one["name"])
        if request.query_params.get("troubled"):
            found = [one for one in found if one["failed"] or one["state"] == "FAILED"]
        found.sort(key=lambda one: (one["worker"], one["name"]))
        answer = page(request, found, dict)
        lags = await optional(_lags(view, [one["name"] for one in answer["items"] if one["type"] == "sink"]), {})
        for one in answer["items"]:
            one["lag"] = lags.get(one["name"])
        workers = [{key: group[key] for key in ("url", "version", "error")} for group in groups]
        return {**answer, "workers": workers}

    async def change(self, view: ClusterView, request: ApiRequest) -> dict[str, Any]:
        """Pause, resume or restart a connector. Path: worker (its position), name, action. Raises HTTPException if the
        connector or the action does not exist, the user lacks permission, or the worker does not respond."""
        await self._permit(view, Operation.ALTER)
        place, name, action = (request.path_params[key] for key in ("worker", "name", "action"))
        if action not in _ACTIONS or place >= len(self._urls) or name in (".", ".."):
            raise HTTPException(404, f"{request.url.path} does not exist.")
        method, path = _ACTIONS[action]
        await self._ask(place, method, f"/connectors/{quote(name, safe='')}/{path}")
        view.forget()
        return {"done": action}

    # --- Workers ---

    @property
    def _urls(self) -> Sequence[str]:
        return () if self._settings is None else self._settings.urls

    async def _permit(self, view: ClusterView, operation: Operation) -> None:
        """Raise HTTPException: 403 if the user lacks this permission on the cluster, 404 if there are no workers."""
        if self._settings is None:
            raise HTTPException(404, "The console has no Connect workers: start it with --connect-url.")
        answer = await view.client.send(DescribeClusterRequest(include_cluster_authorized_operations=True))
        if not answer.cluster_authorized_operations >> int(operation) & 1:
            what = operation.name.capitalize()
            raise HTTPException(403, f"Connectors need the permission {what} on the cluster.")

    async def _group(self, view: ClusterView, place: int) -> dict[str, Any]:
        assert self._settings is not None
        group: dict[str, Any] = {
            "url": self._settings.shown_urls[place],
            "version": None,
            "error": None,
            "connectors": [],
        }
        try:
            version, found = await view.kept(f"connect-{place}", lambda: self._read(place))
        except HTTPException as error:
            return group | {"error": error.detail}
        return group | {"version": version, "connectors": [_shown(place, name, one) for name, one in found]}

    async def _read(self, place: int) -> tuple[str, list[tuple[str, Any]]]:
        about, found = await asyncio.gather(
            self._ask(place, "GET", "/"), self._ask(place, "GET", "/connectors?expand=status&expand=info")
        )
        return str(about.get("version", "")), sorted(found.items())[:_CONNECTORS_MAX]

    async def _ask(self, place: int, method: str, path: str) -> Any:
        """Send a request to the worker at this position, and return the JSON of the response. Raises HTTPException if
        the worker does not respond or rejects the request."""
        import httpx

        assert self._settings is not None
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=_TIMEOUT_S, verify=self._settings.tls or True, auth=self._settings.login, trust_env=False
            )
        shown = self._settings.shown_urls[place]
        try:
            answer = await self._client.request(method, f"{self._urls[place]}{path}")
            body = answer.json() if answer.content else {}
        except (httpx.HTTPError, ValueError) as error:
            text = f"The Connect worker {shown} does not respond: {error or type(error).__name__}"
            raise HTTPException(503, text) from None
        if answer.is_error:
            reason = body.get("message") if isinstance(body, dict) else None
            status = answer.status_code if answer.status_code in (404, 409) else 502
            raise HTTPException(
                status, f"The Connect worker {shown} rejected the request: {reason or answer.status_code}"
            )
        return body


def _shown(place: int, name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connector for the browser, without its configuration, which may contain secrets."""
    info, status = found.get("info") or {}, found.get("status") or {}
    own = status.get("connector") or {}
    tasks = [_task(one) for one in status.get("tasks") or ()]
    return {
        "worker": place,
        "name": name,
        "type": status.get("type") or info.get("type") or "unknown",
        "class": (info.get("config") or {}).get("connector.class", ""),
        "tasks": tasks,
        "failed": sum(one["state"] == "FAILED" for one in tasks),
        **_task(own),
    }


def _task(one: Mapping[str, Any]) -> dict[str, Any]:
    trace = str(one.get("trace") or "")
    shown = {"state": one.get("state", "UNASSIGNED"), "workerId": one.get("worker_id"), "trace": trace[:_TRACE_MAX]}
    return {"id": one["id"], **shown} if "id" in one else shown


async def _lags(view: ClusterView, sinks: Sequence[str]) -> dict[str, int]:
    """Return the lag of each sink, in records, by name. Omits sinks whose group the user may not see."""
    groups = {one.name for one in await view.groups()}
    names = [f"{_GROUP}{name}" for name in sinks if f"{_GROUP}{name}" in groups]
    if not names:
        return {}
    found = await every_type.describe(view.client, names, with_offsets=True, timeout_ms=TIMEOUT_MS)
    described = {one.name: tables.as_data(one) for one in found.consumers if not one.error}
    return {
        name.removeprefix(_GROUP): sum(each["lag"] or 0 for each in data["offsets"]) for name, data in described.items()
    }
