"""The lag of a streaming query behind its topics, from Spark's report of each micro-batch.

Spark has no metrics for sources in Python: neither its UI nor ``StreamingQueryProgress`` shows a lag. But a progress
report contains the end offsets of the batch and the latest offsets, as for Spark's Kafka source. The lag is their
difference when the last batch was planned. A query that makes no progress reports nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from parley.pipeline.client.cluster import TopicPartition
from parley.pipeline.format.offset_decisions import from_json

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lag:
    """The number of offsets of each partition that a query had not read when a batch was planned."""

    query: str
    """The query's name, or its id if it has no name."""
    batch: int
    partitions: Mapping[TopicPartition, int]

    @property
    def total(self) -> int:
        return sum(self.partitions.values())

    @property
    def max(self) -> int:
        return max(self.partitions.values(), default=0)


def lag_of(progress: Any) -> Lag:
    """Return a query's lag, from a ``StreamingQueryProgress``: that of all its sources that report offsets
    of topics.
    """
    found: dict[TopicPartition, int] = {}
    for source in progress.sources:
        end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
        lags = {place: offset - end.get(place, 0) for place, offset in latest.items()}
        found |= {place: found.get(place, 0) + max(0, lag) for place, lag in lags.items()}
    return Lag(str(progress.name or progress.id), progress.batchId, found)


def _offsets(text: str | None) -> Mapping[TopicPartition, int]:
    try:
        found = json.loads(text or "{}")
        return from_json(found) if _is_of_topics(found) else {}
    except ValueError:
        return {}


def _is_of_topics(found: Any) -> bool:
    of: Iterable[Any] = found.values() if isinstance(found, dict) else [None]
    return all(isinstance(each, dict) and all(isinstance(offset, int) for offset in each.values()) for each in of)


class LagListener(StreamingQueryListener):
    """Calls ``on_lag`` with the lag after each micro-batch of every query. Without ``on_lag``, it logs the lag.

    Add it to a session with ``spark.streams.addListener``.
    """

    def __init__(self, on_lag: Callable[[Lag], None] | None = None) -> None:
        self._on_lag = on_lag or _logged

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        return

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._on_lag(lag_of(event.progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        return

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        return


def _logged(lag: Lag) -> None:
    facts = {"query": lag.query, "batch": lag.batch, "offsets_behind": lag.total, "offsets_behind_max": lag.max}
    _log.info("lag of a streaming query", extra=facts)
