"""The background work of the brokers: compaction, verification, healing, and the recovery of logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from parley.protocol.messages.background_work import COMPACTION, HEALING, RECOVERY, VERIFICATION
from parley.tools.console.cluster_view import BackgroundWork
from parley.tools.console.pace import remaining_ms

_UNITS: Final = {COMPACTION: "bytes", VERIFICATION: "bytes", HEALING: "ranges", RECOVERY: "logs"}


def shown(works: Iterable[BackgroundWork]) -> list[dict[str, Any]]:
    """Return the work as JSON data, sorted by kind, broker and partition. ``rate`` is the average in units per second,
    ``remainingMs`` the time, in milliseconds, that the rest takes at this rate; both are None if unknown."""
    listed = sorted(works, key=lambda one: (one.kind, one.broker_id, one.topic or "", one.partition_index))
    return [_one(work) for work in listed]


def recovering(works: Iterable[BackgroundWork]) -> dict[int, str]:
    """Return, by broker, a text that says how many of its logs are open. Contains only brokers that are still opening
    their logs."""
    return {one.broker_id: f"{one.done:,} of its {one.total:,} logs are open" for one in works if one.kind == RECOVERY}


def _one(work: BackgroundWork) -> dict[str, Any]:
    rate = 1000 * work.done / work.elapsed_ms if work.done and work.elapsed_ms > 0 else None
    return {
        "kind": work.kind,
        "unit": _UNITS.get(work.kind, "bytes"),
        "broker": work.broker_id,
        "topic": work.topic,
        "partition": work.partition_index,
        "directory": work.log_dir,
        "done": work.done,
        "total": work.total,
        "elapsedMs": work.elapsed_ms,
        "rate": rate,
        "remainingMs": remaining_ms(work.total - work.done, rate),
        "detail": work.detail,
    }
