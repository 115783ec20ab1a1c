"""The parts of a broker that maintain its replicas: following, ISR changes, reports, healing, scrubbing and
compaction."""

from __future__ import annotations

from functools import partial

from parley.broker.config import BrokerConfig
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.replication.fetcher_assignment import ReplicaFetchers
from parley.broker.replication.healing import Healing
from parley.broker.replication.isr_maintenance import IsrMaintenance
from parley.broker.replication.offline_replicas import OfflineReplicas
from parley.broker.replication.replica_directories import ReplicaDirectories
from parley.broker.replication.replica_reports import ReplicaReports
from parley.broker.runtime.threads import COMPACTION
from parley.broker.startup.environment import Environment
from parley.broker.startup.foundation import Foundation
from parley.broker.startup.logs import OpenedLogs
from parley.broker.startup.membership import Membership
from parley.light_dataclasses import dataclass
from parley.storage.compaction.cleaner_worker import ProcessWorker, ThreadWorker
from parley.storage.compaction.log_cleaner import CleanerSettings, LogCleaner
from parley.storage.damage.scrubber import Scrubber, ScrubSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """The parts that work in the background on the hosted partitions and their logs."""

    fetchers: ReplicaFetchers
    offline_replicas: OfflineReplicas
    replica_directories: ReplicaDirectories
    replica_reports: ReplicaReports
    isr: IsrMaintenance
    healing: Healing
    scrubber: Scrubber
    log_cleaner: LogCleaner


def make_replication(
    environment: Environment, opened: OpenedLogs, base: Foundation, membership: Membership
) -> Replication:
    """Create the parts of ``Replication``. They begin their work when the broker starts them."""
    broker_id, config, partitions, peers = base.broker_id, base.config, base.partitions, base.peers
    clock, tasks, epoch = environment.clock, environment.tasks, membership.broker_epoch
    lifecycle = membership.lifecycle
    # These parts repeat their requests to the controller: a lost response must not delay them for longer than this.
    ask_controller = partial(peers.ask_controller, timeout_s=environment.config.session_timeout_ms / 1000)
    healing = Healing(
        broker_id,
        partitions,
        opened.manager,
        base.metadata,
        peers,
        config,
        peers.ask_controller,
        tasks,
        epoch=epoch,
        monotonic=clock.monotonic,
    )
    replica_reports = ReplicaReports(
        broker_id, opened.manager, partitions, lifecycle.incarnation_id, lambda: lifecycle.registered_epoch
    )
    membership.reports.set_own(lifecycle.incarnation_id, replica_reports.page)
    return Replication(
        fetchers=ReplicaFetchers(
            broker_id, partitions, peers, config, tasks, epoch=epoch, leave_isr=healing.leave_isr, rng=environment.rng
        ),
        offline_replicas=OfflineReplicas(broker_id, partitions, ask_controller, epoch=epoch),
        replica_directories=ReplicaDirectories(broker_id, opened.manager, partitions, ask_controller, epoch=epoch),
        replica_reports=replica_reports,
        isr=IsrMaintenance(
            broker_id, partitions, ask_controller, config, tasks, epoch=epoch, monotonic=clock.monotonic
        ),
        healing=healing,
        scrubber=Scrubber(
            opened.manager,
            opened.manager.directories,
            lambda: _scrub_settings(config()),
            now_ms=clock.wall_ms,
            monotonic=clock.monotonic,
        ),
        log_cleaner=_log_cleaner(environment, opened, config),
    )


def _scrub_settings(config: BrokerConfig) -> ScrubSettings:
    return ScrubSettings(config.log_scrub_interval_ms, config.log_scrub_max_bytes_per_second)


def _log_cleaner(environment: Environment, opened: OpenedLogs, config: DynamicConfig) -> LogCleaner:
    """Return the log cleaner. It compacts in separate processes, unless the broker shares its process with another
    program."""
    clock = environment.clock
    return LogCleaner(
        opened.manager,
        lambda: cleaner_settings(config()),
        ProcessWorker if environment.owns_process else lambda: ThreadWorker(clock.monotonic),
        environment.tasks.start,
        environment.threads.compaction,
        now_ms=clock.wall_ms,
        monotonic=clock.monotonic,
    )


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """Return the settings of the log cleaner."""
    return CleanerSettings(
        # A compaction that waits for a thread could not be stopped before a thread becomes free.
        threads=min(config.log_cleaner_threads, COMPACTION) if config.log_cleaner_enable else 0,
        map_bytes=config.log_cleaner_dedupe_buffer_size,
        map_load_factor=config.log_cleaner_io_buffer_load_factor,
        bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        backoff_ms=config.log_cleaner_backoff_ms,
    )
