"""Exports and imports of topics (``parley load``), as shown by the progress records that they write to the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.pipeline.load.progress_topic import LOADS, RUNNING, LoadProgress
from parley.pipeline.mirror.internal_records import MalformedRecord
from parley.protocol.records.record import Record
from parley.tools.console.cluster_view import ClusterView
from parley.tools.console.last_records import last_records
from parley.tools.console.pace import remaining_ms

_READ_MAX: Final = 1000
"""The number of latest records to read: enough for 16 loads during two minutes."""
_SHOWN_MS: Final = 600_000
"""The time for which a load is shown after its last record."""
_SILENT_MS: Final = 15_000
"""A running load counts as silent if it has not written for this long, which is several times ``BEAT_S``."""
_RATE_MS: Final = 30_000


async def loads(view: ClusterView) -> list[dict[str, Any]]:
    """Return the running loads, and those that ended recently (``_SHOWN_MS``). Raises KafkaError if the user may not
    read their topic."""
    return shown(await view.kept("loads", lambda: last_records(view, LOADS, _READ_MAX)), SYSTEM_CLOCK.wall_ms())


def shown(records: Iterable[Record], now_ms: int) -> list[dict[str, Any]]:
    """Return the loads whose progress these records report, the latest first. ``rate`` is in records per second,
    ``remainingMs`` the time that the rest takes at this rate; both are None if unknown, or if the load is not
    running."""
    by_load: dict[str, list[LoadProgress]] = {}
    for one in records:
        try:
            told = LoadProgress.decode(one.value)
        except MalformedRecord:
            continue
        by_load.setdefault(told.id, []).append(told)
    recent = [told for told in by_load.values() if told[-1].at_ms >= now_ms - _SHOWN_MS]
    return [_load(told, now_ms) for told in sorted(recent, key=lambda told: -told[-1].begun_ms)]


def _load(told: Sequence[LoadProgress], now_ms: int) -> dict[str, Any]:
    last = told[-1]
    age_ms = max(now_ms - last.at_ms, 0)
    runs = last.state == RUNNING and age_ms <= _SILENT_MS
    rate = _rate(told) if runs else None
    left = None if last.wanted is None else max(last.wanted - last.done, 0)
    return {
        "id": last.id,
        "topic": last.topic,
        "place": last.place,
        "direction": last.direction,
        "state": last.state if runs or last.state != RUNNING else "silent",
        "ageMs": age_ms,
        "elapsedMs": max(last.at_ms - last.begun_ms, 0),
        "done": last.done,
        "wanted": last.wanted,
        "rate": rate,
        "remainingMs": remaining_ms(left, rate),
    }


def _rate(told: Sequence[LoadProgress]) -> float | None:
    """Return the records per second during the last half minute, or None if that is unknown."""
    last = told[-1]
    first = next(one for one in told if one.at_ms >= last.at_ms - _RATE_MS)
    took_ms = last.at_ms - first.at_ms
    return 1000 * (last.done - first.done) / took_ms if took_ms > 0 and last.done >= first.done else None
