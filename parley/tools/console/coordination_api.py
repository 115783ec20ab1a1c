"""The coordination store: which store is in charge, its sessions, epochs and keys, and a live move to another store.

The state of a move comes from the controller. The rest comes from the store itself, if the console has its URL. A user
sees it only with the permission to read the state of a move (Alter on the cluster). Secrets are masked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from starlette.exceptions import HTTPException

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.consensus.backend import Backend, Entry
from parley.consensus.errors import CoordinationError
from parley.consensus.recipes.settled_write import unwrap
from parley.consensus.store_move.store_lookup import open_existing
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.coordination import ABORT, START, MigrateCoordinationRequest
from parley.tools.cli.cluster_client import described
from parley.tools.console.answers import ApiRequest, number, text_of
from parley.tools.console.cluster_view import ClusterView
from parley.tools.console.settings import ConsoleSettings
from parley.tools.coordination.dump_and_restore import masked, readable
from parley.tools.coordination.status import status_of

_OPEN_S: Final = 10.0
_LATENCIES_MAX: Final = 600
_CHILDREN_MAX: Final = 200
_LAST: Final = "\U0010ffff"


class StoreWindow:
    """The console's connection to the coordination store, opened at the first use."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._store = settings.store
        self._backend: Backend | None = None
        self._opening = asyncio.Lock()
        self._latencies: deque[tuple[int, float]] = deque(maxlen=_LATENCIES_MAX)

    async def close(self) -> None:
        """Close the connection."""
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()

    async def opened(self) -> Backend:
        """Return the store, which the first call opens. Raises HTTPException (404) if the console has none;
        CoordinationError or TimeoutError if it cannot be opened."""
        if self._store is None:
            raise HTTPException(404, "The console has no store: start it with --config or --coordination-url.")
        async with self._opening:
            if self._backend is None:
                async with asyncio.timeout(_OPEN_S):
                    self._backend = await open_existing(*self._store)
            return self._backend

    async def overview(self, view: ClusterView, request: ApiRequest) -> dict[str, Any]:
        """Return the latest move, and the state of the store if the console has its URL. If the store does not respond,
        ``storeError`` contains the reason. Raises KafkaError if the user may not see the state of a move."""
        move = await _state_of_move(view)
        found: dict[str, Any] = {"isParley": move is not None, "move": None, "store": None}
        if move is None:
            return found
        found["move"] = {name: getattr(move, name) for name in ("move", "state", "step", "detail", "store")}
        if self._store is None:
            return found
        try:
            found["store"] = await view.kept("store", self._status)
        except (CoordinationError, TimeoutError) as error:
            await self.close()
            found["storeError"] = f"The store does not respond: {error or type(error).__name__}"
        found["latency"] = [{"at": at, "ms": ms} for at, ms in self._latencies]
        return found

    async def _status(self) -> dict[str, Any]:
        backend = await self.opened()
        assert self._store is not None
        begun = SYSTEM_CLOCK.monotonic()
        await backend.get("cluster")
        self._latencies.append((SYSTEM_CLOCK.wall_ms(), round((SYSTEM_CLOCK.monotonic() - begun) * 1000, 3)))
        return (await status_of(backend, self._store[0])).as_data()

    async def tree(self, view: ClusterView, request: ApiRequest) -> dict[str, Any]:
        """Return the next level of keys below a prefix, with masked secrets. Query: prefix, after (the ``after`` of the
        previous response), limit. ``after`` is None in the last response.

        Raises HTTPException (404) if the brokers are not Parley's, or the console does not have the store's URL.
        """
        if await _state_of_move(view) is None:  # this also checks the permission to see the store
            raise HTTPException(404, "The brokers are not Parley's: they have no coordination store.")
        backend = await self.opened()
        prefix = request.query_params.get("prefix", "")
        after: str | None = request.query_params.get("after") or None
        limit = number(request, "limit", 100, 1, _CHILDREN_MAX)
        children: list[dict[str, Any]] = []
        while len(children) < limit:
            page = await backend.list(prefix, limit=limit, after=after)
            after = page.next_after
            for entry in page.entries:
                child, slash, _ = entry.key.removeprefix(prefix).partition("/")
                if slash and children and children[-1]["key"] == f"{prefix}{child}/":
                    continue
                if len(children) == limit:
                    after = children[-1]["key"]
                    break
                if slash:
                    children.append({"key": f"{prefix}{child}/", "folder": True})
                    after = f"{prefix}{child}/{_LAST}"  # skip what lies below
                    break
                children.append(_shown(entry))
            if after is None:
                break
        return {"prefix": prefix, "children": children, "after": after}

    async def move(self, view: ClusterView, request: ApiRequest) -> dict[str, Any]:
        """Start a move to the store at ``url``, or abort the move in progress if ``abort`` is true. Returns the state
        of the move. Raises KafkaError if the controller rejects the request."""
        body = await request.object()
        if body.get("abort") is True:
            change = MigrateCoordinationRequest(action=ABORT)
        else:
            change = MigrateCoordinationRequest(action=START, url=text_of(body, "url"))
        answer = await view.client.send(change)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message or described(answer.error_code))
        view.forget()
        return {name: getattr(answer, name) for name in ("move", "state", "step", "detail", "store")}


async def _state_of_move(view: ClusterView) -> Any | None:
    move = await view.store_move()
    if move is not None and move.error_code not in (ErrorCode.NONE, ErrorCode.NOT_CONTROLLER):
        raise KafkaError(ErrorCode(move.error_code), move.error_message or described(move.error_code))
    return move


def _shown(entry: Entry) -> dict[str, Any]:
    try:
        value = masked(entry.key, readable(unwrap(entry).value))
    except (ValueError, KeyError, TypeError, CoordinationError):
        value = None
    return {"key": entry.key, "bytes": len(entry.value), "session": entry.session, "value": value}
