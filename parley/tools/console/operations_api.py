"""The operations of a cluster: work in progress, transactions, features, log directories."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.tools.cli import features as feature_levels
from parley.tools.cli.reassign.throttles import Ongoing
from parley.tools.cli.transactions.states import describe_transaction, list_transactions
from parley.tools.console import broker_work, loads_api, mirrors_api
from parley.tools.console.answers import ApiRequest, matching, page
from parley.tools.console.cluster_view import ClusterView, optional
from parley.tools.console.pace import remaining_ms

_Replica: TypeAlias = tuple[str, int, int]
"""Topic, partition and broker."""
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_HANGING_TIMES: Final = 2


async def transactions(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return a page of the transactional ids, open transactions first and with their age and partitions. Query: search,
    open (only open transactions), page, size."""
    found = matching(
        request,
        await view.kept("transactions", lambda: list_transactions(view.client)),
        lambda one: one.transactional_id,
    )
    if request.query_params.get("open"):
        found = [one for one in found if one.state in _OPEN]
    found.sort(key=lambda one: (one.state not in _OPEN, one.transactional_id))
    answer = page(request, found, lambda one: one)
    answer["items"] = list(await asyncio.gather(*(_transaction(view, one) for one in answer["items"])))
    return answer


async def _transaction(view: ClusterView, one: Any) -> dict[str, Any]:
    data = {
        "id": one.transactional_id, "state": one.state, "producerId": one.producer_id, "coordinator": one.coordinator,
    }  # fmt: skip
    if one.state not in _OPEN:
        return data
    detail = await describe_transaction(view.client, one.transactional_id)
    if detail is None or detail.started_at_ms < 0:
        return data
    age_ms = max(SYSTEM_CLOCK.wall_ms() - detail.started_at_ms, 0)
    return {
        **data,
        "ageMs": age_ms,
        "timeoutMs": detail.timeout_ms,
        "late": age_ms > _HANGING_TIMES * detail.timeout_ms,
        "partitions": [{"topic": topic, "partition": index} for topic, index in detail.partitions],
    }


async def features(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return the features of the cluster and their levels."""
    return {"features": await feature_levels.described(view.client)}


async def log_dirs(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return a page of the brokers' log directories, with the ten largest partitions in each. Query: page, size."""
    found = await view.directories()
    items = [
        {
            "broker": broker,
            "path": each.log_dir,
            "error": each.error_code,
            "size": each.total_bytes if each.total_bytes >= 0 else None,
            "free": each.usable_bytes if each.usable_bytes >= 0 else None,
            "used": sum(one.partition_size for topic in each.topics for one in topic.partitions),
            "partitions": sum(len(topic.partitions) for topic in each.topics),
            "largest": sorted(
                (
                    {"topic": topic.name, "partition": one.partition_index, "bytes": one.partition_size}
                    for topic in each.topics
                    for one in topic.partitions
                ),
                key=lambda one: -one["bytes"],
            )[:10],
        }
        for broker, directories in sorted(found.items())
        for each in directories
    ]
    return page(request, items, lambda one: one)


async def work(view: ClusterView, request: ApiRequest) -> dict[str, Any]:
    """Return the work in progress: reassignments and moves between log directories with the remaining bytes, the
    brokers' background work, loads, and mirrors into this cluster.

    ``rate`` is per second. It is None if unknown. The background work is None if no broker reports it.
    """
    moving = await view.reassignments()
    sizes: dict[_Replica, int] = {}
    between: list[dict[str, Any]] = []
    for broker, directories in (await optional(view.directories(), {})).items():
        for each in directories:
            for topic in each.topics:
                for one in topic.partitions:
                    if one.is_future_key:
                        between.append(
                            {"topic": topic.name, "partition": one.partition_index, "broker": broker,
                             "to": each.log_dir, "done": one.partition_size, "lag": one.offset_lag}
                        )  # fmt: skip
                    else:
                        sizes[topic.name, one.partition_index, broker] = one.partition_size
    items = [_reassignment(topic, index, one, sizes) for (topic, index), one in sorted(moving.items())]
    mirrors = await optional(mirrors_api.flows(view), [])
    loads = await optional(loads_api.loads(view), [])
    background = await optional(view.background_work(), None)
    _add_rates(view, [*items, *between])
    return {
        **page(request, items, lambda one: one),
        "directories": between[:200],
        "brokers": None if background is None else broker_work.shown(background)[:200],
        "loads": loads[:200],
        "mirrors": mirrors[:200],
    }


def _reassignment(topic: str, index: int, one: Ongoing, sizes: Mapping[_Replica, int]) -> dict[str, Any]:
    largest = max((sizes.get((topic, index, broker), 0) for broker in one.replicas), default=0)
    return {
        "topic": topic,
        "partition": index,
        "adding": list(one.adding),
        "removing": list(one.removing),
        "done": sum(sizes.get((topic, index, broker), 0) for broker in one.adding),
        "size": len(one.adding) * largest,
    }


def _add_rates(view: ClusterView, moves: Sequence[dict[str, Any]]) -> None:
    names = [(one["topic"], one["partition"], one.get("broker")) for one in moves]
    done = dict(zip(names, (one["done"] for one in moves), strict=True))
    rates = view.pace.look(SYSTEM_CLOCK.monotonic(), done)
    for name, one in zip(names, moves, strict=True):
        rate = one["rate"] = rates[name]
        left = one["size"] - one["done"] if "size" in one else 0
        one["remainingMs"] = remaining_ms(left, rate) if left > 0 else None
