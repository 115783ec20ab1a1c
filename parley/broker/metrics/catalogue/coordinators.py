"""Metrics of groups, transactions and their producers, and of the coordinator runtime."""

from __future__ import annotations

from parley.broker.metrics.instruments import Histogram, Instruments, counter, gauge, seconds_histogram

_REPLICAS = "kafka.server:type=ReplicaManager,name={}"
_COORDINATOR = "kafka.server:type=*-coordinator-metrics: {}"


class ProducerMetrics(Instruments, title="Producers and transactions"):
    """The producers known to the partitions that this broker leads, and their transactions."""

    producers: int = gauge(
        "parley_producers",
        "Idempotent and transactional producers. A producer that writes to three partitions counts three times.",
        _REPLICAS.format("ProducerIdCount"),
    )
    open_transactions: int = gauge(
        "parley_open_transactions", "Open transactions. A transaction in three partitions counts three times."
    )
    late_partitions: int = gauge(
        "parley_late_transaction_partitions",
        "Partitions whose earliest transaction should have been ended by its timeout. Readers of committed records "
        "cannot read past it.",
        _REPLICAS.format("PartitionsWithLateTransactionsCount"),
    )


class VerificationMetrics(Instruments, title="Verification of transactions"):
    """This broker's requests to transaction coordinators to verify that a partition belongs to a transaction."""

    failures: int = counter(
        "parley_transaction_verification_failures",
        "Partitions that a coordinator rejected, or for which no coordinator could be reached.",
        "kafka.server:type=AddPartitionsToTxnManager,name=VerificationFailureRate",
    )
    duration: Histogram = seconds_histogram(
        "parley_transaction_verification_duration_seconds",
        "Time until the coordinator's response.",
        "kafka.server:type=AddPartitionsToTxnManager,name=VerificationTimeMs",
    )


class TransactionMetrics(Instruments, title="Transactional ids", labels=("state",)):
    """The transactional ids that this broker coordinates, by state."""

    transactional_ids: int = gauge("parley_transactional_ids", "Transactional ids in this state.")


class MarkerMetrics(Instruments, title="Markers of transactions"):
    """The transaction markers that this broker, as the coordinator, sends to the leaders of partitions."""

    transactions: int = gauge(
        "parley_transactions_completing", "Transactions whose outcome is stored and whose markers are being written."
    )
    leaderless: int = counter(
        "parley_transaction_markers_leaderless",
        "Attempts to write a marker to a partition without a leader.",
        "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=UnknownDestinationQueueSize",
    )


class GroupMetrics(Instruments, title="Groups", labels=("state",)):
    """The groups of the classic protocol that this broker coordinates, by state."""

    groups: int = gauge(
        "parley_groups",
        "Groups in this state.",
        "kafka.coordinator.group:type=GroupMetadataManager,name=NumGroups*",
    )


class ConsumerGroupMetrics(Instruments, title="Groups of the consumer protocol", labels=("state",)):
    """The groups of the consumer protocol (KIP-848) that this broker coordinates, by state."""

    consumer_groups: int = gauge(
        "parley_consumer_groups",
        "Groups of the consumer protocol in this state.",
        "kafka.server:type=group-coordinator-metrics,name=consumer-group-count,state=*",
    )


class StreamsGroupMetrics(Instruments, title="Streams groups", labels=("state",)):
    """The streams groups (KIP-1071) that this broker coordinates, by state."""

    streams_groups: int = gauge(
        "parley_streams_groups",
        "Streams groups in this state.",
        "kafka.server:type=group-coordinator-metrics,name=streams-group-count,state=*",
    )


class ShareGroupStateMetrics(Instruments, title="Share groups by state", labels=("state",)):
    """The share groups (KIP-932) that this broker coordinates, by state."""

    share_groups: int = gauge(
        "parley_share_groups",
        "Share groups in this state.",
        "kafka.server:type=group-coordinator-metrics,name=share-group-count,state=*",
    )


class GroupMemberMetrics(Instruments, title="Members of groups", labels=("group", "type")):
    """The groups with members that this broker coordinates, at most ``metrics.group.partitions.max`` of them. ``type``
    is classic, consumer, share or streams."""

    members: int = gauge("parley_group_members", "Members of the group.")
    epoch: int = gauge(
        "parley_group_epoch",
        "The epoch of the group, or its generation if it uses the classic protocol. Each rebalance increases it.",
    )


class GroupLagMetrics(Instruments, title="Lag of groups", labels=("group", "topic", "partition")):
    """The committed offsets of the groups that this broker coordinates, for at most ``metrics.group.partitions.max``
    partitions, and their lag. The lag is measured to the high watermark that this broker knows. It is omitted if this
    broker has no in-sync replica of the partition. A partition for which the group has committed no offset has no lag.
    """

    lag: int = gauge(
        "parley_group_lag_records",
        "Records from the committed offset to the end of the partition. A follower may learn of the end with a short "
        "delay.",
        "kafka.consumer:type=consumer-fetch-manager-metrics,partition=*,topic=*,client-id=*: records-lag",
    )
    offset: int = gauge("parley_group_committed_offset", "The committed offset.")


class GroupOffsetMetrics(Instruments, title="Committed offsets"):
    """The work of the group coordinator."""

    offsets: int = gauge(
        "parley_group_offsets",
        "Stored committed offsets.",
        "kafka.coordinator.group:type=GroupMetadataManager,name=NumOffsets",
    )
    commits: int = counter(
        "parley_group_offset_commits",
        "Commits of offsets.",
        "kafka.server:type=group-coordinator-metrics: offset-commit-count",
    )
    expired: int = counter(
        "parley_group_offset_expirations",
        "Committed offsets that expired after offsets.retention.minutes.",
        "kafka.server:type=group-coordinator-metrics: offset-expiration-count",
    )
    rebalances: int = counter(
        "parley_group_rebalances",
        "Completed rebalances of groups of the classic protocol.",
        "kafka.server:type=group-coordinator-metrics: group-completed-rebalance-count",
    )
    consumer_rebalances: int = counter(
        "parley_consumer_group_rebalances",
        "Epochs that groups of the consumer protocol have started.",
        "kafka.server:type=group-coordinator-metrics: consumer-group-rebalance-count",
    )
    streams_rebalances: int = counter(
        "parley_streams_group_rebalances",
        "Epochs that streams groups have started.",
        "kafka.server:type=group-coordinator-metrics: streams-group-rebalance-count",
    )


class CoordinatorPartitionMetrics(Instruments, title="Coordinators: partitions", labels=("topic", "state")):
    """The partitions of each internal topic that this broker leads, by state: loading, active, or failed (the last
    attempt to read the partition failed)."""

    partitions: int = gauge(
        "parley_coordinator_partitions", "Partitions in this state.", _COORDINATOR.format("num-partitions")
    )


class CoordinatorMetrics(Instruments, title="Coordinators", labels=("topic",)):
    """The work of the group and transaction coordinators, by internal topic."""

    queued: int = gauge(
        "parley_coordinator_queued_events", "Events waiting for their turn.", _COORDINATOR.format("event-queue-size")
    )
    appends: int = counter(
        "parley_coordinator_appends",
        "Batches of records written. Several events share a batch.",
        _COORDINATOR.format("batch-flush-rate"),
    )
    commit_time: Histogram = seconds_histogram(
        "parley_coordinator_commit_seconds",
        "Time from an append until all in-sync replicas have replicated it.",
        _COORDINATOR.format("event-purgatory-time-ms-*"),
    )
    load_time: Histogram = seconds_histogram(
        "parley_coordinator_load_seconds",
        "Time to load a partition after an election.",
        _COORDINATOR.format("partition-load-time-*"),
    )
    skipped: int = counter(
        "parley_coordinator_skipped_records",
        "Records skipped while a partition was loaded, because they could not be decoded.",
    )
