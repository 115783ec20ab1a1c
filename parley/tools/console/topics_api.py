"""Topics: their list, their partitions and replicas, and changes to them."""

from __future__ import annotations

import re
from typing import Any

from starlette.exceptions import HTTPException

from parley.tools.cli import delete_records
from parley.tools.cli.cluster_client import led_by
from parley.tools.cli.topic_offsets import EARLIEST, LATEST, list_offsets_of
from parley.tools.cli.topics import changing, describing
from parley.tools.console.answers import ApiRequest, described_topic, integer_of, matching, page, refuse, text_of
from parley.tools.console.cluster_view import ClusterView, optional

_SORTS = ("name", "partitions", "records")


async def topics(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return a page of the topics. Query: search, internal (include internal topics), troubled (only topics with
    replicas out of sync or without a leader), sort (name, partitions or records), page, size. Raises HTTPException
    (400) for an unknown sort order."""
    found = matching(request, (await view.metadata()).topics, lambda topic: topic.name or "")
    if not request.query_params.get("internal"):
        found = [topic for topic in found if not topic.is_internal]
    if request.query_params.get("troubled"):
        found = [topic for topic in found if _troubles(topic)]
    ends = await optional(view.end_offsets(), {})
    records = (
        {
            id(topic): sum(ends.get((topic.name or "", one.partition_index), 0) for one in topic.partitions)
            for topic in found
        }
        if ends
        else {}
    )
    sort = request.query_params.get("sort", "name")
    if sort not in _SORTS:
        raise HTTPException(400, f"sort must be one of {', '.join(_SORTS)}")
    found.sort(key=lambda topic: topic.name or "")
    if sort == "partitions":
        found.sort(key=lambda topic: -len(topic.partitions))
    elif sort == "records":
        found.sort(key=lambda topic: -records.get(id(topic), 0))

    def render(topic: Any) -> dict[str, Any]:
        return {
            "name": topic.name,
            "internal": topic.is_internal,
            "partitions": len(topic.partitions),
            "replicas": max((len(one.replica_nodes) for one in topic.partitions), default=0),
            "underReplicated": sum(len(one.isr_nodes) < len(one.replica_nodes) for one in topic.partitions),
            "offline": sum(one.leader_id < 0 for one in topic.partitions),
            "ends": records.get(id(topic)),
        }

    return page(request, found, render)


def _troubles(topic: Any) -> bool:
    return any(len(one.isr_nodes) < len(one.replica_nodes) or one.leader_id < 0 for one in topic.partitions)


async def topic(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return a topic with its partitions: leader, replicas, ISR, offsets, and sizes if the user may read them. An
    offset is None if it is unknown. Raises KafkaError if the topic cannot be described."""
    name = request.path_params["name"]
    answer = await described_topic(view.client, name)
    found = answer.topics[0]
    led = led_by(answer.topics)
    first = await list_offsets_of(view.client, led, EARLIEST)
    last = await list_offsets_of(view.client, led, LATEST)
    sizes = await _sizes(view, name)
    moving = await optional(view.reassignments(), {})

    def offset(offsets: Any, index: int) -> int | None:
        got = offsets.get((name, index))
        return got.offset if got is not None and not got.error else None

    return {
        "name": name,
        "id": describing.id_text(found.topic_id),
        "internal": found.is_internal,
        "brokers": sorted(
            {one.node_id for one in answer.brokers} | {b for one in found.partitions for b in one.replica_nodes}
        ),
        "alive": sorted(one.node_id for one in answer.brokers),
        "partitions": [
            {
                "index": one.partition_index,
                "leader": one.leader_id,
                "leaderEpoch": one.leader_epoch,
                "replicas": list(one.replica_nodes),
                "isr": list(one.isr_nodes),
                "adding": list(moving[name, one.partition_index].adding)
                if (name, one.partition_index) in moving
                else [],
                "first": offset(first, one.partition_index),
                "end": offset(last, one.partition_index),
                "bytes": sizes.get(one.partition_index),
            }
            for one in sorted(found.partitions, key=lambda one: one.partition_index)
        ],
    }


async def _sizes(view: ClusterView, name: str) -> dict[int, int]:
    """Return the size of the largest replica of each partition, in bytes, or an empty mapping if the user may not read
    it."""
    sizes: dict[int, int] = {}
    for each in (await optional(view.directories(), {})).values():
        for directory in each:
            for topic in directory.topics:
                if topic.name == name:
                    for one in topic.partitions:
                        sizes[one.partition_index] = max(one.partition_size, sizes.get(one.partition_index, 0))
    return sizes


async def create(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Create a topic. Body: name, partitions and replicas (-1: the cluster's default), configs (an object with string
    values). Raises CommandError if the controller rejects the request."""
    body = await request.object()
    configs = body.get("configs", {})
    if not isinstance(configs, dict) or not all(isinstance(value, str) for value in configs.values()):
        raise HTTPException(400, "configs must be an object with string values")
    wanted = changing.NewTopic(
        text_of(body, "name"), integer_of(body, "partitions", -1), integer_of(body, "replicas", -1), None, configs
    )
    await changing.create(view.client, wanted, if_not_exists=False, verbose=False)
    view.forget()
    return {"created": wanted.name}


async def delete(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Delete a topic. Raises CommandError if it does not exist, or the controller rejects the request."""
    name = request.path_params["name"]
    await changing.delete(view.client, re.escape(name), if_exists=False)
    view.forget()
    return {"deleted": name}


async def add_partitions(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Add partitions to a topic. Body: ``count`` is the new total number. Raises CommandError if the topic does not
    exist, or the controller rejects the request."""
    name, body = request.path_params["name"], await request.object()
    growth = changing.Growth(integer_of(body, "count"), None)
    await changing.alter(view.client, re.escape(name), growth, if_exists=False)
    view.forget()
    return {"partitions": growth.partitions}


async def remove_records(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Delete the records of a partition before an offset. Body: partition, offset (-1: all records). Returns the new
    log start offset as ``first``. Raises KafkaError if the broker refuses."""
    name, body = request.path_params["name"], await request.object()
    where = name, integer_of(body, "partition")
    results = await delete_records.delete(view.client, {where: integer_of(body, "offset")})
    low, code = results[where]
    refuse(code)
    view.forget()
    return {"first": low}
