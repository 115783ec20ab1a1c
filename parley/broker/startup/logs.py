"""The third phase of startup: opens the logs in the data directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from parley.broker.config import log_config
from parley.broker.membership.recovery_notes import RecoveryNotes
from parley.broker.metrics.catalogue.logs import FlushMetrics
from parley.broker.metrics.flush_times import FlushTimes
from parley.broker.metrics.health import Health
from parley.broker.startup.environment import Environment
from parley.broker.startup.store import Joined, remember_in
from parley.light_dataclasses import dataclass
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory
from parley.storage.log_maintenance import MaintenanceIntervals
from parley.storage.log_manager import LogManager


class DirectoryFailures:
    """A function to call when a log directory has failed. It reports the failure to ``/healthz``, and the directory's
    logs to the part that uses them."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._lose_logs: Callable[[list[Log]], None] | None = None

    def report_logs_to(self, lose_logs: Callable[[list[Log]], None]) -> None:
        """Call ``lose_logs(logs)`` for each directory that fails from now on."""
        self._lose_logs = lose_logs

    def __call__(self, directory: LogDirectory, logs: list[Log]) -> None:
        self._health.trouble(str(directory), f"offline: {directory.error}")
        if self._lose_logs is not None:
            self._lose_logs(logs)


@dataclass(frozen=True, slots=True)
class OpenedLogs:
    """The logs of this broker."""

    manager: LogManager
    failures: DirectoryFailures


async def open_logs(environment: Environment, joined: Joined) -> OpenedLogs:
    """Open every log, and recover the logs that were not closed cleanly. Raises the errors of ``LogManager.open``."""
    environment.health.starting("opening logs")
    config = environment.config
    directories = list(map(Path, config.data_dirs))
    failures = DirectoryFailures(environment.health)
    flushes = FlushTimes(environment.clock.monotonic)
    environment.metrics.watch(FlushMetrics, lambda: [((), flushes.metrics)])
    notes = RecoveryNotes(
        joined.store_move.store, environment.rng, joined.identity.broker_id, environment.clock.monotonic
    )
    manager = LogManager(
        directories,
        default_config=log_config(config, {}),
        now_ms=environment.clock.wall_ms,
        random=environment.rng,
        start_task=environment.maintenance.start,
        intervals=MaintenanceIntervals(
            retention_check_ms=config.log_retention_check_interval_ms,
            flush_check_ms=config.log_flush_scheduler_interval_ms,
            recovery_point_checkpoint_ms=config.log_flush_offset_checkpoint_interval_ms,
            log_start_checkpoint_ms=config.log_flush_start_offset_checkpoint_interval_ms,
            high_watermark_checkpoint_ms=config.replica_high_watermark_checkpoint_interval_ms,
            producer_expiration_check_ms=config.producer_id_expiration_check_interval_ms,
        ),
        recovery_threads_per_directory=config.num_recovery_threads_per_data_dir,
        producer_expiration_ms=config.producer_id_expiration_ms,
        highest_leader_epoch=joined.epochs.known.leader_epoch,
        measured_flush=flushes.measure,
        on_offline=failures,
        on_all_offline=environment.failed.set,
        on_opening=notes.tell,
        executor=environment.threads.upkeep,
        closing=environment.threads.closing,
    )
    environment.undo.push_async_callback(environment.maintenance.close)
    environment.undo.push_async_callback(manager.close)
    try:
        await manager.open(joined.identity.cluster_id, joined.identity.broker_id)
    finally:
        await notes.close()
    await remember_in(directories, joined.store_move.store.identity)
    return OpenedLogs(manager, failures)
