"""Remembers rejected batches of idempotent producers, so that the batches sent after them are rejected, too.

1. If a batch continues a rejected batch instead of the log, it is rejected with the same error, and remembered, too.
   The producer then resends all these batches in order.
2. Each broker remembers only its own rejections.
3. Rejected records have not been validated. Memory for them is limited and shared among the client hosts: when it is
   full, a host with more than its share loses its oldest batch.

docs/architecture.md, "Batches after a rejected one", has the reasons.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from parley.broker.metadata.topic_names import NAME_LENGTH_MAX
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import MAGIC_V2, BatchHeader, Buffer, read_header
from parley.protocol.records.errors import CorruptRecord
from parley.protocol.uuids import UUID
from parley.storage.producer_row import advance
from parley.storage.producer_state import ProducerState

REFUSALS_MAX = 100_000
"""The maximum number of rejected batches to remember, one per producer and partition. They take about 50 MB."""
PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Errors after which a producer resends the same batch: the retriable errors of Kafka's Java client.

CORRUPT_MESSAGE is one of them, because the batch may arrive intact the next time. If its header was corrupt, the
remembered sequence number matches no batch, which is harmless.
"""

_Place = tuple[str | UUID, int, int]
"""The topic as the producer identifies it, the partition and the producer id."""


class _Refusal(NamedTuple):
    epoch: int
    next_sequence: int
    code: ErrorCode
    host: str


class Refusals:
    """The last rejected batch of each producer and partition. It is kept until the batch that the log expects
    arrives."""

    def __init__(self) -> None:
        self._last: dict[_Place, _Refusal] = {}
        self._of: dict[str, OrderedDict[_Place, None]] = {}  # host -> its rejected batches, oldest first

    def __len__(self) -> int:
        return len(self._last)

    def note(self, topic: str | UUID, index: int, records: Buffer | None, code: ErrorCode, *, host: str) -> None:
        """Record that records from ``host`` were rejected, if an idempotent producer resends them after ``code``.

        The records have not been validated, so they may contain anything.
        """
        header = _idempotent(records)
        if header is None or code not in PASSING or (isinstance(topic, str) and len(topic) > NAME_LENGTH_MAX):
            return
        place = (topic, index, header.producer_id)
        self._forget(place)
        self._last[place] = _Refusal(header.producer_epoch, advance(header.last_sequence, 1), code, host)
        self._of.setdefault(host, OrderedDict())[place] = None
        if len(self._last) > REFUSALS_MAX:
            self._forget(next(iter(self._most(host))))

    def _forget(self, place: _Place) -> None:
        refusal = self._last.pop(place, None)
        if refusal is not None:
            sent = self._of[refusal.host]
            del sent[place]
            if not sent:
                del self._of[refusal.host]

    def _most(self, host: str) -> OrderedDict[_Place, None]:
        """Return the rejected batches of the host that must give up one of them.

        This is ``host`` if it exceeds its share, and otherwise the host with the most batches.
        """
        sent = self._of[host]
        return sent if len(sent) * len(self._of) > len(self._last) else max(self._of.values(), key=len)

    def check(self, topic: str | UUID, index: int, header: BatchHeader, known: ProducerState) -> None:
        """Check a batch before it is appended to a log with the producer state ``known``.

        Raises KafkaError with the error of the rejected batch if this batch continues it.
        """
        if not _is_idempotent(header):
            return
        place = (topic, index, header.producer_id)
        refusal = self._last.get(place)
        if refusal is None:
            return
        if known.expects(header):
            self._forget(place)
        elif (refusal.epoch, refusal.next_sequence) == (header.producer_epoch, header.base_sequence):
            raise KafkaError(refusal.code, "The previous batch was rejected: resend it first.")


def _idempotent(records: Buffer | None) -> BatchHeader | None:
    """Return the header of an idempotent producer's batch, or None for other records."""
    try:
        header = read_header(records or b"")
    except CorruptRecord:
        return None
    return header if _is_idempotent(header) else None


def _is_idempotent(header: BatchHeader) -> bool:
    """Return True if the batch has a producer id and sequence numbers."""
    return (
        header.has_producer and header.magic == MAGIC_V2 and header.base_sequence >= 0 and header.last_offset_delta >= 0
    )
