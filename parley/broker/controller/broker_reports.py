"""Brokers' reports about their logs: how far each log reaches, whether it is intact, and which directory holds it.

The controller requests a report with GetReplicaLogInfo (KIP-966) before it registers a broker, and when it must choose
a leader among replicas that were not in sync.
"""

from __future__ import annotations

from collections.abc import Mapping

from parley.broker.metadata.types import UNASSIGNED_DIRECTORY
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode
from parley.protocol.sentinels import NO_EPOCH, NO_OFFSET
from parley.protocol.uuids import UUID

Replica = tuple[UUID, int]
"""A replica: its topic id and partition number."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A broker's report about one of its logs.

    ``leader_epoch`` is the epoch of the last record, or a newer one that the log has stored; ``current_leader_epoch``
    is the highest epoch that the broker knows.

    ``error`` is an error of GetReplicaLogInfo. CORRUPT_MESSAGE: part of the log is damaged, but the offsets are valid.
    UNKNOWN_TOPIC_OR_PARTITION: there is no log, or a new one in place of a log that was lost; its offsets are valid.
    """

    leader_epoch: int = NO_EPOCH
    log_end_offset: int = NO_OFFSET
    high_watermark: int = NO_OFFSET
    current_leader_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH
    directory: UUID = UNASSIGNED_DIRECTORY
    error: ErrorCode = ErrorCode.NONE
    may_be_cut_by_power: bool = False
    """True if a power cut may have removed records from the end of the log. The machine has lost power, and no check
    can detect whether acknowledged records that had not been synced are missing. (Not related to ``.cut`` files.)"""

    @property
    def is_conclusive(self) -> bool:
        """True if the broker knows the state of its log; False if the log directory may be offline."""
        return self.error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.CORRUPT_MESSAGE)

    def is_final(self, leader_epoch: int) -> bool:
        """Return True if the log cannot change before the controller elects another leader. ``leader_epoch`` is the
        current leader epoch of the partition, which has no leader.

        A broker that has not applied that state yet may still lead, and acknowledge records after its report, or may
        still fetch. A broker that does not host the replica yet does neither.
        """
        return self.partition_epoch == NO_EPOCH or self.current_leader_epoch >= leader_epoch

    @property
    def is_intact(self) -> bool:
        """True if the log contains everything below the high watermark that the broker has persisted."""
        return self.error is ErrorCode.NONE and self.log_end_offset >= self.high_watermark


MISSING = ReplicaReport(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""The report of a log that the broker does not have."""
OFFLINE = ReplicaReport(error=ErrorCode.KAFKA_STORAGE_ERROR)
"""The report of a log that may be in an offline log directory."""


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The report of one broker process about all its logs, or about those that the controller requested."""

    incarnation_id: UUID
    replicas: Mapping[Replica, ReplicaReport]
    is_any_directory_offline: bool = False

    def replica(self, topic_id: UUID, index: int) -> ReplicaReport:
        """Return the report of a log. For a log that is not in the report, return ``MISSING`` or ``OFFLINE``."""
        found = self.replicas.get((topic_id, index), MISSING)
        is_missing = found.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return OFFLINE if is_missing and self.is_any_directory_offline else found
