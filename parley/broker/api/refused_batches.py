"""Which batches of idempotent producers were refused, so that those sent behind them are refused as well.

A producer has several requests to a partition under way. When the first is refused for a reason that passes, as it is
by a broker that does not know yet that it leads, the next ones are on their way already, and that reason may be gone
when they arrive. Whatever is done with them then but to refuse them is wrong:

* A log that knows nothing of the producer would take them, before the ones that were refused.
* One that knows the producer would answer OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka takes that for a reason to count
  anew under a newer epoch, and to send again all that it has no answer to: what an earlier leader had appended by then
  would be there twice, and no broker could tell.

So a batch that continues a refused one, and not the log, gets that one's error, and counts as refused from then on. The
producer sends all of them again in their order. If it leaves the refused batch out, the log judges the next one when it
comes a second time, as Kafka's would: OUT_OF_ORDER_SEQUENCE_NUMBER where the log knows the producer; where it does not,
any number may come first (KIP-360), and the batch is taken. A producer that gives a batch up says so to its user, and
counts anew under another epoch.

Each broker remembers what it refused itself: of batches sent to two brokers none hears of the other.

Records that are refused were not validated, and may name any topic and producer. So what is remembered is shared out
among the hosts that clients connect from: when there is no more room, the host with the most gives way. A topic's
existence does not count, since this broker may hear of it last of all.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple
from uuid import UUID

from parley.broker.metadata.topic_names import NAME_LENGTH_MAX
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import MAGIC_V2, BatchHeader, Buffer, read_header
from parley.protocol.records.errors import CorruptRecord
from parley.storage.producer_state import ProducerState, advance

REFUSALS_MAX = 100_000
"""Refused batches that are remembered, one of each producer and partition: some 50 MB. Of the host that has the most,
the oldest is forgotten first."""
PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
    }
)
"""Errors of an append after which a producer sends the same batch again: those that Kafka's Java client calls
retriable. CORRUPT_MESSAGE is one, since what a network has garbled is whole the next time. The header may be what is
garbled; then a number is remembered that nobody is going to continue."""

_Place = tuple[str | UUID, int, int]
"""Topic, as the producer names it, partition and producer id."""


class _Refusal(NamedTuple):
    epoch: int
    next_sequence: int
    code: ErrorCode
    host: str


class Refusals:
    """The last batch that was refused of each producer and partition, until one that the log waits for comes."""

    def __init__(self) -> None:
        self._last: dict[_Place, _Refusal] = {}
        self._of: dict[str, OrderedDict[_Place, None]] = {}  # host -> what it sent, oldest first

    def __len__(self) -> int:
        return len(self._last)

    def note(self, topic: str | UUID, index: int, records: Buffer | None, code: ErrorCode, *, host: str) -> None:
        """Records that came from ``host`` were refused; what they are was not looked at yet, they may be anything."""
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
        """What the host has sent that has to give way; not to be searched for on behalf of one with a full share."""
        sent = self._of[host]
        return sent if len(sent) * len(self._of) > len(self._last) else max(self._of.values(), key=len)

    def check(self, topic: str | UUID, index: int, header: BatchHeader, known: ProducerState) -> None:
        """To be called before an append to a log, whose producers are ``known``.

        Raises :class:`KafkaError` with the code of the refused batch that the records continue.
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
            raise KafkaError(refusal.code, "The batch before this one was refused: send that one again first.")


def _idempotent(records: Buffer | None) -> BatchHeader | None:
    """The header of an idempotent producer's batch; None for anything else."""
    try:
        header = read_header(records or b"")
    except CorruptRecord:
        return None
    return header if _is_idempotent(header) else None


def _is_idempotent(header: BatchHeader) -> bool:
    """True for a batch with a producer id and sequence numbers."""
    return (
        header.has_producer and header.magic == MAGIC_V2 and header.base_sequence >= 0 and header.last_offset_delta >= 0
    )
