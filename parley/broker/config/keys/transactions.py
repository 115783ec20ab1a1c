"""Idempotent producers and transactions."""

from __future__ import annotations

from parley.broker.config.definition import CLUSTER_WIDE, HIGH, LOW, Keys, boolean, integer, short
from parley.broker.config.keys.reasons import TRANSACTIONS


class TransactionKeys(Keys, title="Producers and transactions"):
    """Idempotent producers and transactions."""

    producer_id_expiration_ms = integer(
        "producer.id.expiration.ms",
        86_400_000,
        "How long a partition remembers a producer that sends nothing. A retry after it could write a record "
        "twice: no shorter than the producers' delivery.timeout.ms.",
        at_least=1,
        unit="ms",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="3.4 (KIP-854)",
    )
    producer_id_expiration_check_interval_ms = integer(
        "producer.id.expiration.check.interval.ms",
        600_000,
        "How often partitions are looked over for such producers.",
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
        ignored=TRANSACTIONS,
    )
    transaction_max_timeout_ms = integer(
        "transaction.max.timeout.ms",
        900_000,
        "The longest timeout a transactional producer may ask for; readers of committed records may have to "
        "wait that long for one that died.",
        at_least=1,
        unit="ms",
        importance=HIGH,
        since="0.11.0 (KIP-98)",
        ignored=TRANSACTIONS,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = integer(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often transactions are looked over for those to abort.",
        at_least=1,
        unit="ms",
        importance=LOW,
        since="0.11.0 (KIP-98)",
        ignored=TRANSACTIONS,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = integer(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often transactional ids are looked over for unused ones.",
        at_least=1,
        unit="ms",
        importance=LOW,
        since="0.11.0 (KIP-98)",
        ignored=TRANSACTIONS,
    )
    transaction_partition_verification_enable = boolean(
        "transaction.partition.verification.enable",
        True,
        "Whether a partition asks the coordinator if a transaction really includes it before it takes records of it.",
        dynamic=CLUSTER_WIDE,
        importance=LOW,
        since="3.6 (KIP-890)",
        ignored=TRANSACTIONS,
    )
    transaction_two_phase_commit_enable = boolean(
        "transaction.two.phase.commit.enable",
        False,
        "Whether a producer may leave the end of its transaction to an outside coordinator.",
        importance=LOW,
        since="4.1 (KIP-939)",
        ignored=TRANSACTIONS,
    )
    transaction_state_log_num_partitions = integer(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of the topic that holds the state of transactions. Only for its creation.",
        at_least=1,
        importance=HIGH,
        since="0.11.0 (KIP-98)",
        ignored=TRANSACTIONS,
    )
    transaction_state_log_replication_factor = short(
        "transaction.state.log.replication.factor",
        3,
        "Replicas of the transactions topic.",
        at_least=1,
        importance=HIGH,
        since="0.11.0 (KIP-98)",
        ignored=TRANSACTIONS,
    )
    transaction_state_log_min_isr = integer(
        "transaction.state.log.min.isr",
        2,
        "min.insync.replicas of the transactions topic.",
        at_least=1,
        importance=HIGH,
        since="0.11.0 (KIP-98)",
        ignored=TRANSACTIONS,
    )
    transaction_state_log_segment_bytes = integer(
        "transaction.state.log.segment.bytes",
        104_857_600,
        "The size of the transactions topic's segments.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
        since="0.11.0 (KIP-98)",
        ignored=TRANSACTIONS,
    )
    transaction_state_log_load_buffer_size = integer(
        "transaction.state.log.load.buffer.size",
        5_242_880,
        "How much of the transactions topic is read at a time when a coordinator takes over.",
        at_least=1,
        unit="bytes",
        importance=HIGH,
        since="0.11.0 (KIP-98)",
        ignored=TRANSACTIONS,
    )
    add_partitions_to_txn_retry_backoff_ms = integer(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "How long the coordinator waits before it tries again to add a partition while the previous transaction ends.",
        at_least=1,
        unit="ms",
        importance=HIGH,
        since="4.0",
        ignored=TRANSACTIONS,
    )
    add_partitions_to_txn_retry_backoff_max_ms = integer(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "What add.partitions.to.txn.retry.backoff.ms grows to at most.",
        at_least=0,
        unit="ms",
        importance=HIGH,
        since="4.0",
        ignored=TRANSACTIONS,
    )
