"""Watches for shortages of file descriptors and memory, if the broker has a process to itself."""

from __future__ import annotations

from parley.broker.metrics.catalogue.process import ShortageMetrics
from parley.broker.runtime.exhaustion_watch import ExhaustionWatch
from parley.broker.startup.composition import Parts
from parley.broker.startup.environment import Environment


def watch_for_exhaustion(environment: Environment, parts: Parts) -> ExhaustionWatch:
    """Start watching. If the broker must end because of a shortage, ``environment.failed`` is set."""
    patience_s = environment.config.session_timeout_ms / 1000
    watch = ExhaustionWatch(
        environment.health,
        parts.connection_quotas,
        parts.load,
        partitions=lambda: len(parts.logs.logs),
        end=environment.failed.set,
        patience_s=patience_s,
        monotonic=environment.clock.monotonic,
    )
    environment.metrics.watch(ShortageMetrics, watch.metrics)
    environment.tasks.start(watch.run(), name="exhaustion watch")
    return watch
