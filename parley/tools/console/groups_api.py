"""Groups of all types: list, members, lag, offset resets with a preview, deletion."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from starlette.exceptions import HTTPException

from parley.tools.cli.cluster_client import TIMEOUT_MS
from parley.tools.cli.groups import every_type, reset, tables
from parley.tools.cli.groups.deleting import delete_groups
from parley.tools.cli.groups.partition_selection import parse_selection
from parley.tools.cli.share_groups import tables as share_tables
from parley.tools.cli.streams_groups import tables as streams_tables
from parley.tools.console.answers import ApiRequest, integer_of, matching, page, refuse, text_of
from parley.tools.console.cluster_view import ClusterView

_TARGETS = ("to_earliest", "to_latest", "to_offset", "shift_by", "to_datetime")


async def groups(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return a page of the groups. Query: search, type, state, page, size."""
    found = matching(request, await view.groups(), lambda group: group.name)
    for name in ("type", "state"):
        if wanted := request.query_params.get(name):
            found = [group for group in found if getattr(group, name).lower() == wanted.lower()]
    return page(request, found, lambda group: {one.name: getattr(group, one.name) for one in fields(group)})


async def group(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return a group with its members and the lag of each partition. Raises HTTPException (404) if it does not
    exist."""
    name = request.path_params["name"]
    found = await every_type.describe(view.client, [name], with_offsets=True, timeout_ms=TIMEOUT_MS)
    if found.share:
        return {"type": "Share", **share_tables.as_data(found.share[0])}
    if found.streams:
        return {"type": "Streams", **streams_tables.as_data(found.streams[0])}
    (one,) = found.consumers
    if one.error:
        raise HTTPException(404, one.error)
    kind = next((each.type for each in await view.groups() if each.name == name), "Classic")
    return {"type": kind, **tables.as_data(one)}


async def reset_offsets(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Find new offsets for a group, and commit them only if ``execute`` is true. Body: target, value, topics (``topic``
    or ``topic:0,1``), execute. Raises HTTPException: 400 for a wrong body, 409 if the group cannot be reset."""
    name, body = request.path_params["name"], await request.object()
    kind = text_of(body, "target")
    if kind not in _TARGETS:
        raise HTTPException(400, f"target must be one of {', '.join(_TARGETS)}")
    if kind == "to_datetime":
        target = reset.Target(kind, reset.parse_datetime(text_of(body, "value")))
    else:
        target = reset.Target(kind, integer_of(body, "value", 0))
    topics = body.get("topics", [])
    if not isinstance(topics, list) or not all(isinstance(each, str) for each in topics):
        raise HTTPException(400, "topics must be a list of strings")
    execute = body.get("execute") is True
    plan = reset.Plan(target, (name,), parse_selection(topics), execute, TIMEOUT_MS)
    (result,) = await reset.reset(view.client, plan)
    if result.error:
        raise HTTPException(409, result.error)
    return {
        "executed": execute,
        "offsets": [
            {"topic": topic, "partition": index, "offset": offset}
            for (topic, index), offset in sorted(result.offsets.items())
        ],
    }


async def delete(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Delete a group. Raises KafkaError if the cluster refuses, for example NON_EMPTY_GROUP."""
    name = request.path_params["name"]
    code = (await delete_groups(view.client, [name], timeout_ms=TIMEOUT_MS))[name]
    refuse(code)
    view.forget()
    return {"deleted": name}
