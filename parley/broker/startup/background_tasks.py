"""A phase of startup: starts the tasks that run for the whole life of a broker and that no other phase starts."""

from __future__ import annotations

from parley.broker.metrics.catalogue.process import ShortageMetrics
from parley.broker.runtime.exhaustion_watch import ExhaustionWatch
from parley.broker.startup.composition import Parts
from parley.broker.startup.environment import Environment
from parley.protocol.errors import KafkaError


def start_background_tasks(environment: Environment, parts: Parts) -> None:
    """Start the maintenance of logs, replicas and groups, now that this broker is a member of the cluster."""
    tasks = environment.tasks
    tasks.start(parts.groups.expire(), name="expiry of offsets")
    tasks.start(parts.isr.run(), name="in-sync replicas")
    tasks.start(parts.offline_replicas.run(), name="offline replicas")
    tasks.start(parts.replica_directories.run(), name="directories of replicas")
    for directory in parts.logs.online():
        tasks.start(parts.scrubber.run(directory), name=f"scrubber of {directory}")
    tasks.start(parts.log_cleaner.run(), name="log cleaner")
    # If this fails, the first producer without an id tries again, and gets the error.
    tasks.start(parts.producer_ids.reserve(), name="first producer ids", expected=(KafkaError,))
    environment.undo.push_async_callback(parts.fetchers.close)


def watch_for_exhaustion(environment: Environment, parts: Parts) -> ExhaustionWatch:
    """Watch for shortages of file descriptors and memory, and return the running watch. Only a broker that has a
    process to itself does this.

    If the broker must end because of a shortage, ``environment.failed`` is set.
    """
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
