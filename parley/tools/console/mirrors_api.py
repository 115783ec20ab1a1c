"""Mirrors that copy topics to this cluster, from their heartbeats (KIP-382).

A mirror writes a heartbeat to the target cluster each second: Parley's with its progress, MirrorMaker's without. The
last heartbeats of a flow show whether it is alive, how fast it copies, and how long it needs for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.pipeline.mirror.internal_records import Heartbeat, MalformedRecord
from parley.pipeline.mirror.naming import HEARTBEATS
from parley.protocol.records.record import Record
from parley.tools.console.cluster_view import ClusterView
from parley.tools.console.last_records import last_records
from parley.tools.console.pace import remaining_ms

_READ_MAX: Final = 1000
"""The number of latest heartbeats to read: enough for 16 flows during a minute."""
_RATE_MS: Final = 30_000
_SILENT_MS: Final = 10_000
_SILENT_BEATS: Final = 3
"""A flow is silent if its last heartbeat is older than both ``_SILENT_MS`` and this many times the longest interval
between its heartbeats."""


async def flows(view: ClusterView) -> list[dict[str, Any]]:
    """Return the flows into this cluster. Raises KafkaError if the user may not read the heartbeats."""
    return shown(await view.kept("mirrors", lambda: last_records(view, HEARTBEATS, _READ_MAX)), SYSTEM_CLOCK.wall_ms())


def shown(records: Iterable[Record], now_ms: int) -> list[dict[str, Any]]:
    """Return the flows whose heartbeats these are, sorted. ``rate`` is in records per second, ``remainingMs`` the time
    that the rest takes at this rate; both are None if unknown."""
    by_flow: dict[tuple[str, str], list[Heartbeat]] = {}
    for one in records:
        try:
            beat = Heartbeat.decode(one.key, one.value, one.headers)
        except MalformedRecord:
            continue
        by_flow.setdefault((beat.source, beat.target), []).append(beat)
    return [_flow(beats, now_ms) for _, beats in sorted(by_flow.items())]


def _flow(beats: Sequence[Heartbeat], now_ms: int) -> dict[str, Any]:
    last = beats[-1]
    age_ms = max(now_ms - last.timestamp, 0)
    interval_ms = max((b.timestamp - a.timestamp for a, b in pairwise(beats)), default=0)
    silent = age_ms > max(_SILENT_MS, min(_SILENT_BEATS * interval_ms, _SILENT_BEATS * 60_000))
    progress, rate = last.progress, None if silent else _rate(beats)
    return {
        "source": last.source,
        "target": last.target,
        "silent": silent,
        "last": last.timestamp,
        "ageMs": age_ms,
        "topics": None if progress is None else progress.topics,
        "records": None if progress is None else progress.records,
        "bytes": None if progress is None else progress.size_bytes,
        "lag": None if progress is None else progress.lag,
        "rate": rate,
        "remainingMs": None if progress is None else remaining_ms(progress.lag, rate),
    }


def _rate(beats: Sequence[Heartbeat]) -> float | None:
    """Return the records per second during the last half minute, or since the mirror's start if that was later. Returns
    None if that is unknown."""
    last = first = beats[-1]
    for one in reversed(beats):
        if last.progress is None or one.progress is None or first.progress is None:
            return None
        if one.timestamp < last.timestamp - _RATE_MS or one.progress.records > first.progress.records:
            break
        first = one
    if first.progress is None or last.progress is None or first.timestamp >= last.timestamp:
        return None
    return 1000 * (last.progress.records - first.progress.records) / (last.timestamp - first.timestamp)
