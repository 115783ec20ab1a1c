"""Finds batches with an altered leader epoch in a segment without a digest: a batch's checksum does not cover the
epoch.

The epochs in a log never decrease, because a replica whose log contains a higher epoch than the controller's neither
leads nor follows until the controller has raised the epoch. Rules:

1. If an epoch is followed by a lower one, and ignoring one of these two batches puts the epochs in order, that batch
   is altered. If ignoring either does, both count as altered. If the epochs decrease whichever batch is ignored, they
   are accepted: Apache Kafka wrote such logs after ZooKeeper had lost its data.
2. An epoch far above all epochs that the broker knows is altered, and so is an epoch below -1.
3. If ``appended_epochs`` covers a batch, only its verdict counts.
4. Batches of formats 0 and 1, and batches with epoch -1, have no epoch. They are good, and do not count as neighbors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from parley.protocol.records.batch_header import MAGIC_V2, BatchHeader
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.damage.checked_batches import CheckedBatch
from parley.storage.damage.damaged_ranges import DamagedBytes

ELECTIONS_UNNOTED: Final = 1 << 20
"""How far an epoch may exceed the highest epoch that the broker knows. A killed broker has not recorded the latest
elections, and if a store was rolled back to an older state, one of them may have raised the epoch of its partition far
above that of any other partition. No partition has a million elections."""
HELD_MAX: Final = 8
"""The maximum number of batches and damaged ranges held in memory until their neighbors are known. Only logs with many
batches without an epoch, or with much damage, reach it. A batch is then judged without its next neighbor."""

REASON: Final = "the leader epoch of a batch does not fit between those of its neighbors"

Found = CheckedBatch | DamagedBytes
IsHonest = Callable[[BatchHeader], bool | None]


def without_altered(
    found: Iterable[Found],
    *,
    first_offset: int,
    last_offset: int,
    before: int | None,
    highest: int,
    is_honest: IsHonest = lambda header: None,
) -> Iterator[Found]:
    """Yield the batches and the damage of a segment, with each batch that has an altered epoch turned into damage.

    ``first_offset`` and ``last_offset`` are the lowest and the highest offset that the segment can contain. ``before``
    is the epoch of the last batch before the segment, if known; ``highest`` is the highest epoch that the broker knows.
    ``is_honest`` returns the verdict of ``AppendedEpochs.is_honest`` on a batch, or None if only the neighbors of the
    batch count.
    """
    damage: DamagedBytes | None = None
    expected = first_offset
    for each, is_altered in _judged(found, before, highest, is_honest):
        if isinstance(each, CheckedBatch) and not is_altered:
            if damage is not None:
                yield _up_to(damage, each.header.base_offset - 1)
                damage = None
            yield each
            expected = each.header.next_offset
            continue
        new = each if isinstance(each, DamagedBytes) else _damaged(each, expected)
        damage = new if damage is None else DamagedBytes(damage.position, new.end, expected, expected, damage.reason)
    if damage is not None:
        yield _up_to(damage, last_offset)


def _damaged(batch: CheckedBatch, first_offset: int) -> DamagedBytes:
    return DamagedBytes(
        batch.position, batch.position + batch.header.size_bytes, first_offset, batch.header.last_offset, REASON
    )


def _up_to(damage: DamagedBytes, last_offset: int) -> DamagedBytes:
    return DamagedBytes(damage.position, damage.end, damage.first_offset, last_offset, damage.reason)


class _Held:
    """A batch or a damaged range whose neighbors have not been read yet."""

    __slots__ = ("epoch", "found", "is_altered", "is_proven")

    def __init__(self, found: Found, highest: int, is_honest: IsHonest) -> None:
        self.found = found
        epoch = _epoch_of(found)
        honest = is_honest(found.header) if isinstance(found, CheckedBatch) else None
        self.is_proven = bool(honest)
        self.is_altered = epoch < NO_EPOCH or epoch > highest if honest is None else not honest
        self.epoch = NO_EPOCH if self.is_altered else epoch


def _judged(
    found: Iterable[Found], before: int | None, highest: int, is_honest: IsHonest
) -> Iterator[tuple[Found, bool]]:
    """Yield each batch or damaged range, and True if it is a batch with an altered epoch."""
    held: list[_Held] = []
    limit = max(highest, NO_EPOCH if before is None else before) + ELECTIONS_UNNOTED
    unsettled: list[_Held] = []
    """The batches in ``held`` that have an epoch and are not known to be altered; at most three."""
    for each in found:
        new = _Held(each, limit, is_honest)
        held.append(new)
        if new.epoch != NO_EPOCH:
            unsettled.append(new)
        while len(unsettled) > 2 or (unsettled and len(held) > HELD_MAX):
            before = _settle(unsettled, before)
        kept = held.index(unsettled[0]) if unsettled else len(held)
        for settled in held[:kept]:
            yield settled.found, settled.is_altered
        del held[:kept]
    while unsettled:
        before = _settle(unsettled, before)
    for settled in held:
        yield settled.found, settled.is_altered


def _settle(unsettled: list[_Held], before: int | None) -> int | None:
    """Mark the altered batches in ``unsettled`` and remove them. If there are none, the first batch is good, and is
    removed. Returns the epoch of the last good batch."""
    epoch, *following = [each.epoch for each in unsettled]
    suspects = [unsettled[number] for number in altered_of(before, epoch, *following)] if following else []
    altered = [each for each in suspects if not each.is_proven]
    for each in altered:
        each.is_altered = True
        unsettled.remove(each)
    if not altered:
        del unsettled[0]
        return epoch
    return before


def altered_of(before: int | None, epoch: int, following: int, last: int | None = None) -> tuple[int, ...]:
    """Return which of two successive epochs are altered, by index: 0 is ``epoch``, 1 is ``following``.

    The result is empty if neither is. ``before`` is the epoch before the two, and ``last`` the epoch after them; None
    if unknown.
    """
    if epoch <= following:
        return (0,) if before is not None and epoch < before <= following else ()
    without_first = before is not None and before <= following
    without_second = last is not None and epoch <= last and (before is None or before <= epoch)
    if not without_second:
        return (0,) if without_first else ()
    if not without_first:
        return (0, 1) if before is None and epoch != last else (1,)
    if (before == following) == (epoch == last):
        return 0, 1
    return (0,) if before == following else (1,)


def _epoch_of(found: Found) -> int:
    if isinstance(found, DamagedBytes) or found.header.magic < MAGIC_V2:
        return NO_EPOCH
    return found.header.partition_leader_epoch
