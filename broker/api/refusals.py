"""Which batches of idempotent producers were refused, so that those sent behind them are refused as well.

A producer has several requests to a partition under way. When the first is refused for a reason that passes, as it is
by a broker that does not know yet that it leads, the next ones are on their way already, and that reason may be gone
when they arrive. Whatever is done with them then but to refuse them is wrong:

* A log that knows nothing of the producer would take them, before the ones that were refused.
* One that knows the producer would answer OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka takes that for a reason to count
  anew under a newer epoch, and to send again all that it has no answer to: what an earlier leader had appended by then
  would be there twice, and no broker could tell.

So a batch that continues a refused one, and not the log, gets that one's error. The producer sends all of them again in
their order. One that leaves the refused batch out hears of it when it sends the next one a second time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple
from uuid import UUID

from protocol.errors import ErrorCode, KafkaError
from protocol.records.errors import CorruptRecord
from protocol.records.header import MAGIC_V2, BatchHeader, Buffer, read_header
from storage.producers import ProducerState, advance

REFUSALS_MAX = 10_000
"""Refused batches that are remembered, one of each producer and partition; the oldest is forgotten first."""
PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which a producer sends the same batch again."""

_Place = tuple[str | UUID, int, int]
"""Topic, as the producer names it, partition and producer id."""


class _Refusal(NamedTuple):
    epoch: int
    next_sequence: int
    code: ErrorCode


class Refusals:
    """The last batch that was refused of each producer and partition, until one that the log waits for comes."""

    def __init__(self) -> None:
        self._last: OrderedDict[_Place, _Refusal] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def note(self, topic: str | UUID, index: int, records: Buffer | None, code: ErrorCode) -> None:
        """Records were refused; what they are was not looked at yet, they may be anything."""
        header = _idempotent(records)
        if header is None or code not in PASSING:
            return
        place = (topic, index, header.producer_id)
        self._last[place] = _Refusal(header.producer_epoch, advance(header.last_sequence, 1), code)
        self._last.move_to_end(place)
        if len(self._last) > REFUSALS_MAX:
            self._last.popitem(last=False)

    def check(self, topic: str | UUID, index: int, records: Buffer, known: ProducerState) -> None:
        """To be called before an append to a log, whose producers are ``known``.

        Raises :class:`KafkaError` with the code of the refused batch that the records continue.
        """
        header = _idempotent(records)
        if header is None:
            return
        place = (topic, index, header.producer_id)
        refusal = self._last.get(place)
        if refusal is None:
            return
        if known.expects(header):
            del self._last[place]
        elif (refusal.epoch, refusal.next_sequence) == (header.producer_epoch, header.base_sequence):
            raise KafkaError(refusal.code, "The batch before this one was refused: send that one again first.")


def _idempotent(records: Buffer | None) -> BatchHeader | None:
    """The header of an idempotent producer's batch; None for anything else."""
    try:
        header = read_header(records or b"")
    except CorruptRecord:
        return None
    counts = header.magic == MAGIC_V2 and header.base_sequence >= 0 and header.last_offset_delta >= 0
    return header if counts and header.has_producer else None
