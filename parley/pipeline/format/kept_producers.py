"""Idempotent producers that outlive the tasks of a process, as in Spark's Kafka connector.

With a producer for each task of each micro-batch, brokers would have to remember thousands of producers. Rules:

* A process keeps one producer for each cluster and way of writing, for all topics. It has one user at a time.
* Each user writes under its own epoch (``Producer.renew``). So batches of two tasks can be distinguished, and the
  brokers reject late batches of an earlier user.
* If a user fails, its producer is closed, because it does not know what was written.
* At most ``KEPT_MAX`` producers wait for a user, none for longer than ``IDLE_S`` (checked when another is taken or
  returned). They are flushed, and share the cluster's connections, so dropping a producer needs no cleanup.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final

from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.client.writing import Producer, Writing

KEPT_MAX: Final = 16
IDLE_S: Final = 600.0
"""How long a producer may wait for a user: the default of ``spark.kafka.producer.cache.timeout`` in Spark's
connector.
"""


@dataclass(frozen=True, slots=True)
class _Kept:
    producer: Producer
    since: float


class KeptProducers:
    """The producers that wait for a user. ``now`` is a clock in seconds. Threads may share this object."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._waiting: dict[tuple[Connection, Writing], _Kept] = {}
        """The waiting producers, in the order in which they were returned."""

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def use(self, cluster: Cluster, writing: Writing) -> Iterator[Producer]:
        """Yield a producer without a transactional id for one task. At the end, flush it and keep it for the next task.

        Raises KafkaError. After an error in the block, the producer is closed.
        """
        key = cluster.connection, writing
        producer = self._take(key) or Producer(cluster, writing)
        try:
            producer.renew()
            yield producer
            producer.flush()
        except BaseException:
            producer.close()
            raise
        self._give_back(key, producer)

    def _take(self, key: tuple[Connection, Writing]) -> Producer | None:
        with self._lock:
            self._forget_idle()
            kept = self._waiting.pop(key, None)
        return None if kept is None else kept.producer

    def _give_back(self, key: tuple[Connection, Writing], producer: Producer) -> None:
        with self._lock:
            self._waiting.pop(key, None)
            self._waiting[key] = _Kept(producer, self._now())
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Drop the producers that have waited too long and, if there are too many, the oldest."""
        for key, kept in list(self._waiting.items()):
            if len(self._waiting) <= KEPT_MAX and self._now() - kept.since < IDLE_S:
                return
            del self._waiting[key]


def kept_producer(cluster: Cluster, writing: Writing) -> AbstractContextManager[Producer]:
    """Return a context manager for one of this process's kept producers. See ``KeptProducers.use``."""
    return _kept_by(os.getpid()).use(cluster, writing)


@cache
def _kept_by(process: int) -> KeptProducers:
    return KeptProducers()  # one per process: a fork inherits the cache, but not the connections
