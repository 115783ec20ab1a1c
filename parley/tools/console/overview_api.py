"""The overview: brokers, controller, health, and the live history."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from starlette.exceptions import HTTPException

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.tools.console import broker_work
from parley.tools.console.answers import ApiRequest
from parley.tools.console.cluster_view import ClusterView, optional
from parley.tools.console.health import PartitionState, as_data, findings

_HOUR_MS: Final = 3_600_000
_RANGES_MS: Final = {"hour": _HOUR_MS, "day": 24 * _HOUR_MS, "week": 7 * 24 * _HOUR_MS}
_BEGUN_S: Final = 0.5
"""The time, in seconds, for which a response waits for the samples from before the console's start."""


async def overview(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return the brokers, the controller, the numbers of topics and partitions, and the findings about the cluster's
    health."""
    metadata, cluster = await view.metadata(), await view.cluster()
    fenced = {one.broker_id for one in cluster.brokers if one.is_fenced}
    alive = frozenset(one.node_id for one in metadata.brokers) - fenced
    partitions = [
        PartitionState(topic.name or "", one.partition_index, one.leader_id, one.replica_nodes, one.isr_nodes)
        for topic in metadata.topics
        for one in topic.partitions
    ]
    leads, holds, behind = Counter[int](), Counter[int](), Counter[int]()
    for each in partitions:
        leads[each.leader] += 1
        holds.update(each.replicas)
        behind.update(set(each.replicas) - set(each.isr))
    _note_absences(view, set(holds) - alive, alive)
    disks = await _optional_disks(view)
    background = await optional(view.background_work(), None)
    found = findings(
        partitions,
        alive=alive,
        down_since=view.down_since,
        controller=metadata.controller_id,
        moves=len(await optional(view.reassignments(), {})),
        disks=[(broker, path, size, free) for broker, each in disks.items() for path, size, free, _ in each],
        recovering=broker_work.recovering(background or []),
    )
    hosts = {one.broker_id: one for one in cluster.brokers}
    return {
        "clusterId": cluster.cluster_id,
        "controller": metadata.controller_id,
        "topics": len(metadata.topics),
        "partitions": len(partitions),
        "health": as_data(found),
        "brokers": [
            {
                "id": broker,
                "address": f"{hosts[broker].host}:{hosts[broker].port}" if broker in hosts else None,
                "rack": hosts[broker].rack if broker in hosts else None,
                "alive": broker in alive,
                "downSince": view.down_since.get(broker),
                "leads": leads[broker],
                "follows": holds[broker] - leads[broker],
                "behind": behind[broker],
                "bytes": sum(used for *_, used in disks.get(broker, ())) if broker in disks else None,
                "disk": sum(size for _, size, _, _ in disks.get(broker, ())) or None,
                "free": sum(free for _, _, free, _ in disks.get(broker, ())) or None,
            }
            for broker in sorted({*alive, *hosts, *holds})
        ],
    }


def _note_absences(view: ClusterView, absent: set[int], alive: frozenset[int]) -> None:
    for broker in absent:
        view.down_since.setdefault(broker, SYSTEM_CLOCK.wall_ms())
    for broker in alive:
        view.down_since.pop(broker, None)


async def _optional_disks(view: ClusterView) -> dict[int, list[tuple[str, int, int, int]]]:
    """Return the log directories of each broker as path, size, free bytes and used bytes, or an empty mapping if the
    user may not read them."""
    found = await optional(view.directories(), {})
    return {
        broker: [
            (
                each.log_dir,
                each.total_bytes,
                each.usable_bytes,
                sum(one.partition_size for topic in each.topics for one in topic.partitions),
            )
            for each in directories
        ]
        for broker, directories in found.items()
    }


async def history(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return the samples of the last hour, or the averages of each minute of the last day or week. Query: range (hour,
    day or week). Raises HTTPException (400) for any other range."""
    wanted = request.query_params.get("range", "hour")
    if wanted not in _RANGES_MS:
        raise HTTPException(400, f"range must be one of {', '.join(_RANGES_MS)}")
    with suppress(TimeoutError):
        async with asyncio.timeout(_BEGUN_S):
            await view.history.begun.wait()
    if wanted == "hour":
        return {"samples": view.history.as_data()}
    return {"samples": await view.history.minutes(SYSTEM_CLOCK.wall_ms() - _RANGES_MS[wanted])}


async def live(view: ClusterView) -> AsyncIterator[dict[str, Any]]:
    """Yield each new sample. Never ends."""
    count = view.history.count
    while True:
        sample = await view.history.after(count)
        count = view.history.count
        yield asdict(sample)
