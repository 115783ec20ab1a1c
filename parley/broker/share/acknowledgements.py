"""The acknowledgements in a member's request, and their validation (KIP-932, KIP-1222).

A batch names consecutive records. It contains one type for all records, or one type for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from parley.protocol.errors import ErrorCode, KafkaError

GAP: Final = 0
"""The acknowledgement type of an offset that contains no record, or no record for consumers."""
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4


class AcknowledgementBatch(NamedTuple):
    """Consecutive records, both ends included, and their types: one for all records, or one for each."""

    first: int
    last: int
    types: Sequence[int]

    def runs(self, first: int) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of records with the same type, from ``first`` on, as ``(first, last, type)``."""
        if len(self.types) == 1:
            if self.last >= first:
                yield max(first, self.first), self.last, self.types[0]
            return
        skipped = max(0, first - self.first)
        offset = self.first + skipped
        for kind, run in groupby(self.types[skipped:]):
            size = sum(1 for _ in run)
            yield offset, offset + size - 1, kind
            offset += size


class _Encoded(Protocol):
    """An acknowledgement batch of ShareFetch or ShareAcknowledge."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


def acknowledged(batches: Sequence[_Encoded], *, may_renew: bool) -> list[AcknowledgementBatch]:
    """Validate and return the acknowledgements of one partition. RENEW is a valid type only if ``may_renew``.

    Raises INVALID_REQUEST if offsets are reversed or overlap, a type is invalid, or the number of types is wrong.
    """
    previous_last = -1
    checked = []
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if first > last:
            raise _invalid(f"The first offset {first} of an acknowledgement is greater than its last offset {last}.")
        if first <= previous_last:
            raise _invalid(
                f"The acknowledgements up to {previous_last} and from {first} on overlap or are out of order."
            )
        if not types or (len(types) > 1 and len(types) != last - first + 1):
            raise _invalid(f"The offsets {first} to {last} need one acknowledgement type, or one for each offset.")
        if min(types) < GAP or max(types) > (RENEW if may_renew else REJECT):
            wrong = min(types) if min(types) < GAP else max(types)
            raise _invalid(f"Invalid acknowledgement type {wrong} for the offsets {first} to {last}.")
        previous_last = last
        checked.append(AcknowledgementBatch(first, last, types))
    return checked


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
