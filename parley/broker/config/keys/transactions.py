"""Idempotent producers and transactions."""

from __future__ import annotations

from parley.broker.config.key_definition import CLUSTER_WIDE, HIGH, LOW, Keys, boolean, integer, short


class TransactionKeys(Keys, title="Producers and transactions"):
    """Idempotent producers and transactions."""

    producer_id_expiration_ms = integer(
        "producer.id.expiration.ms",
        86_400_000,
        "How long a partition remembers an idle producer. After that, a retry could write a record twice, so do not "
        "set it below the producers' delivery.timeout.ms.",
        at_least=1,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="3.4 (KIP-854)",
    )
    producer_id_expiration_check_interval_ms = integer(
        "producer.id.expiration.check.interval.ms",
        600_000,
        "How often the broker looks for expired producers.",
        at_least=1,
        unit="ms",
        importance=LOW,
        since="3.4 (KIP-854)",
    )
    transactional_id_expiration_ms = integer(
        "transactional.id.expiration.ms",
        604_800_000,
        "How long an unused transactional id is remembered.",
        at_least=1,
        unit="ms",
        importance=HIGH,
        since="0.11.0 (KIP-98)",
    )
    transactional_ids_max_per_partition = integer(
        "transactional.ids.max.per.partition",
        100_000,
        "The maximum number of transactional ids in a partition of the transactions topic. The coordinator keeps all "
        "of them in memory, about 1 KB each. Beyond this number, producers with new ids are rejected until others "
        "expire.",
        at_least=1,
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="",
    )
    transaction_max_timeout_ms = integer(
        "transaction.max.timeout.ms",
        900_000,
        "The longest timeout that a transactional producer may request. Consumers of committed records may have "
        "to wait this long for a producer that died.",
        at_least=1,
        unit="ms",
        importance=HIGH,
        since="0.11.0 (KIP-98)",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = integer(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often the coordinator looks for transactions that have timed out.",
        at_least=1,
        unit="ms",
        importance=LOW,
        since="0.11.0 (KIP-98)",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = integer(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often the coordinator looks for expired transactional ids.",
        at_least=1,
        unit="ms",
        importance=LOW,
        since="0.11.0 (KIP-98)",
    )
    transaction_partition_verification_enable = boolean(
        "transaction.partition.verification.enable",
        True,
        "Whether the leader of a partition verifies with the coordinator that the partition belongs to a transaction "
        "before it accepts records of the transaction.",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="3.6 (KIP-890)",
    )
    transaction_two_phase_commit_enable = boolean(
        "transaction.two.phase.commit.enable",
        False,
        "Whether an external coordinator can end the transactions of a producer.",
        importance=LOW,
        since="4.1 (KIP-939)",
    )
    transaction_state_log_num_partitions = integer(
        "transaction.state.log.num.partitions",
        50,
        "The number of partitions of the transactions topic. Used only when the topic is created.",
        at_least=1,
        importance=HIGH,
        since="0.11.0 (KIP-98)",
    )
    transaction_state_log_replication_factor = short(
        "transaction.state.log.replication.factor",
        3,
        "The replication factor of the transactions topic.",
        at_least=1,
        importance=HIGH,
        since="0.11.0 (KIP-98)",
    )
    transaction_state_log_min_isr = integer(
        "transaction.state.log.min.isr",
        2,
        "min.insync.replicas of the transactions topic.",
        at_least=1,
        importance=HIGH,
        since="0.11.0 (KIP-98)",
    )
    transaction_state_log_segment_bytes = integer(
        "transaction.state.log.segment.bytes",
        104_857_600,
        "The segment size of the transactions topic.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
        since="0.11.0 (KIP-98)",
    )
    transaction_state_log_load_buffer_size = integer(
        "transaction.state.log.load.buffer.size",
        5_242_880,
        "The number of bytes of the transactions topic that are read at a time when a coordinator loads it.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
        since="0.11.0 (KIP-98)",
        ignored="The broker chooses the size of its reads from the transactions topic.",
    )
    add_partitions_to_txn_retry_backoff_ms = integer(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "How long a broker waits before it asks the coordinator again to add a partition while the producer's "
        "previous transaction ends.",
        at_least=1,
        unit="ms",
        importance=HIGH,
        since="4.0",
    )
    add_partitions_to_txn_retry_backoff_max_ms = integer(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "How long a broker keeps asking the coordinator to add a partition while the producer's previous transaction "
        "ends. After that, the producer gets CONCURRENT_TRANSACTIONS and sends its records again.",
        at_least=0,
        unit="ms",
        importance=HIGH,
        since="4.0",
    )
