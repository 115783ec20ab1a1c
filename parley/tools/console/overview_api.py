"""The overview: brokers, controller, health, and the live history."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.tools.console import broker_work
from parley.tools.console.answers import ApiRequest
from parley.tools.console.cluster_view import ClusterView, optional
from parley.tools.console.health import PartitionState, as_data, findings


async def overview(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return an overview of the cluster."""
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
    """Return the path, size, free and used bytes of each broker's log directories, as far as the user may read them."""
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
    """Return the samples of the last hour."""
    return {"samples": view.history.as_data()}


async def live(view: ClusterView) -> AsyncIterator[dict[str, Any]]:
    """Yield each new sample."""
    from dataclasses import asdict

    count = view.history.count
    while True:
        sample = await view.history.after(count)
        count = view.history.count
        yield asdict(sample)
