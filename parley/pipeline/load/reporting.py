"""Reports the progress of a load in the topic ``parley-loads`` (``progress_topic``).

A load needs no additional permissions: if it is not authorized to create the topic or to write to it, it runs without
reporting.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from parley.pipeline.client.cluster import Cluster, Connection, TopicPartition
from parley.pipeline.load.progress_topic import BEAT_S, DONE, FAILED, LOADS, LoadProgress, shown_place
from parley.pipeline.mirror import admin
from parley.protocol.errors import KafkaError

_REPLICAS_MAX: Final = 3
_SETTINGS: Final = {"retention.ms": "86400000", "segment.bytes": "1048576"}
_REQUEST_MS: Final = 10_000

_log = logging.getLogger(__name__)


class LoadReport:
    """Reports the progress of one load while the ``with`` block runs, and its outcome at the end."""

    def __init__(self, connection: Connection, topic: str, place: str, direction: str) -> None:
        now = _now_ms()
        self._connection = replace(
            connection, request_timeout_ms=_REQUEST_MS, connect_timeout_ms=_REQUEST_MS, api_timeout_ms=_REQUEST_MS
        )
        self._progress = LoadProgress(
            id=uuid.uuid4().hex, topic=topic, place=shown_place(place), direction=direction, begun_ms=now, at_ms=now
        )
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress of the load", daemon=True)
        self.measure: Callable[[Cluster], tuple[int, int | None]] | None = None
        """A function that returns how much is done and wanted. The report calls it, in another thread, if the load
        itself does not call ``show``.
        """

    def show(self, done: int, wanted: int | None) -> None:
        """Set the progress that the next report shows: how much is done, and how much is wanted (None if unknown)."""
        with self._lock:
            self._progress = replace(self._progress, done=done, wanted=wanted)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._progress = replace(self._progress, state=DONE if kind is None else FAILED)
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with Cluster(self._connection) as cluster:
            try:
                self._prepare(cluster)
                while not self._ended.is_set():
                    self._write(cluster)
                    self._ended.wait(BEAT_S)
                self._write(cluster)
            except (KafkaError, OSError) as error:
                _log.info("the progress of the load is not reported in the topic %s: %s", LOADS, error)

    def _prepare(self, cluster: Cluster) -> None:
        there = admin.overview(cluster)
        if LOADS not in there.topics:
            replicas = min(_REPLICAS_MAX, len(there.brokers))
            if problems := admin.create_topics(cluster, {LOADS: 1}, replicas, {LOADS: _SETTINGS}):
                raise OSError(problems[LOADS])

    def _write(self, cluster: Cluster) -> None:
        if self.measure is not None:
            self.show(*self.measure(cluster))
        now = _now_ms()
        with self._lock:
            record = replace(self._progress, at_ms=now)
        admin.write(cluster, TopicPartition(LOADS, 0), [record.encode()], now)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
