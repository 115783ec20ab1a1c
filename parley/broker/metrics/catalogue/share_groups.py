"""Metrics of share partitions, on the brokers that lead the partitions (KIP-932)."""

from __future__ import annotations

from parley.broker.metrics.instruments import Histogram, Instruments, counter, gauge, seconds_histogram

_GROUPS = "kafka.server:type=ShareGroupMetrics,name={}"
_SESSIONS = "kafka.server:type=ShareSessionCache,name={}"


class ShareGroupMetrics(Instruments, title="Share groups"):
    """The records that the members of all share groups acquire and acknowledge on this broker."""

    partitions: int = gauge("parley_share_partitions", "Share partitions that this broker leads.")
    in_flight: int = gauge(
        "parley_share_in_flight_records",
        "Records from the first that is not in a final state to the last that was acquired, in all share partitions.",
        "kafka.server:type=SharePartitionMetrics,name=InFlightMessageCount",
    )
    in_flight_batches: int = gauge(
        "parley_share_in_flight_batches",
        "Runs of consecutive in-flight records with the same state. Each takes a few hundred bytes of memory.",
        "kafka.server:type=SharePartitionMetrics,name=InFlightBatchCount",
    )
    acquired: int = counter("parley_share_acquired_records", "Records that members have acquired.")
    accepted: int = counter(
        "parley_share_accepted_records",
        "Acknowledgements that accept records, which were processed.",
        _GROUPS.format("RecordAcknowledgementsPerSec,ackType=Accept"),
    )
    released: int = counter(
        "parley_share_released_records",
        "Acknowledgements that release records.",
        _GROUPS.format("RecordAcknowledgementsPerSec,ackType=Release"),
    )
    rejected: int = counter(
        "parley_share_rejected_records",
        "Acknowledgements that reject records, which cannot be processed.",
        _GROUPS.format("RecordAcknowledgementsPerSec,ackType=Reject"),
    )
    renewed: int = counter(
        "parley_share_renewed_records",
        "Acknowledgements that renew the lock of a record.",
        _GROUPS.format("RecordAcknowledgementsPerSec,ackType=Renew"),
    )
    lock_timeouts: int = counter(
        "parley_share_lock_timeouts",
        "Records whose lock has ended before a member acknowledged them.",
        "kafka.server:type=SharePartitionMetrics,name=AcquisitionLockTimeoutPerSec",
    )
    load_time: Histogram = seconds_histogram(
        "parley_share_partition_load_seconds",
        "Time to load a share partition.",
        _GROUPS.format("PartitionLoadTimeMs"),
    )
    sessions: int = gauge("parley_share_sessions", "Share sessions.", _SESSIONS.format("ShareSessionsCount"))
    session_partitions: int = gauge(
        "parley_share_session_partitions",
        "Partitions in all share sessions together.",
        _SESSIONS.format("SharePartitionsCount"),
    )
    disconnected: int = counter(
        "parley_share_session_evictions",
        "Share sessions that ended because their connection was closed.",
        _SESSIONS.format("ShareSessionEvictionsPerSec"),
    )
    waiting: int = gauge(
        "parley_share_waiting_fetches",
        "Share fetches waiting for records.",
        "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=ShareFetch",
    )


class ShareLagMetrics(Instruments, title="Lag of share groups", labels=("group", "topic", "partition")):
    """The positions of share groups in partitions, for at most ``metrics.group.partitions.max`` of the share partitions
    that this broker coordinates, and their lag. The lag is omitted in the same cases as for other groups."""

    lag: int = gauge(
        "parley_share_group_lag_records",
        "Records up to the end of the partition that are neither acknowledged nor archived. May lag slightly behind.",
    )
    offset: int = gauge(
        "parley_share_group_start_offset", "The offset of the first record that is neither acknowledged nor archived."
    )
