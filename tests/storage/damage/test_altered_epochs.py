"""Altered leader epochs in a segment without a digest are detected, and no unaltered epoch is reported."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.damage.altered_epochs import ELECTIONS_UNNOTED, HELD_MAX, Found, altered_of, without_altered
from parley.storage.damage.checked_batches import CheckedBatch
from parley.storage.damage.damaged_ranges import DamagedBytes

SIZE = 100
Batch = tuple[int, int]
"""A batch of one record: the number of offsets that compaction removed before it, and its leader epoch."""


def segment_of(batches: Sequence[Batch], magic: int = 2) -> list[CheckedBatch]:
    found, offset = [], 0
    for number, (gap, epoch) in enumerate(batches):
        offset += gap
        header = BatchHeader(offset, SIZE - 12, epoch, magic, 0, 0, 0, 0, 0, -1, -1, -1, 1)
        found.append(CheckedBatch(number * SIZE, header, None))
        offset += 1
    return found


def judged(found: Sequence[Found], *, before: int | None = None, highest: int = 0) -> list[Found]:
    return list(without_altered(found, first_offset=0, last_offset=10_000, before=before, highest=highest))


def altered_in(*epochs: int, before: int | None = None, highest: int = 100) -> list[int]:
    """Return the indexes of the batches that are reported as damaged in a segment with these leader epochs."""
    found = judged(segment_of([(0, epoch) for epoch in epochs]), before=before, highest=highest)
    damaged = [each for each in found if isinstance(each, DamagedBytes)]
    return [number for each in damaged for number in range(each.position // SIZE, each.end // SIZE)]


runs = st.tuples(st.integers(0, 5), st.integers(1, 4))
"""The increment of an epoch over the previous epoch, and the number of its batches."""


@st.composite
def risen(draw: st.DrawFn) -> list[int]:
    """Return the epochs of a log that Parley's leaders wrote, with or without batches that have no epoch."""
    epoch, epochs = draw(st.integers(0, 3)), []
    for rise, count in draw(st.lists(runs, min_size=1, max_size=12)):
        epoch += rise
        epochs += [draw(st.sampled_from([epoch, epoch, epoch, NO_EPOCH])) for _ in range(count)]
    return epochs


@st.composite
def reset(draw: st.DrawFn) -> list[int]:
    """Return the epochs of a log in which the epochs started over at a lower number, with several batches before and
    after that."""
    epochs: list[int] = []
    for part in draw(st.lists(risen(), min_size=1, max_size=4)):
        rising = [each for each in part if each != NO_EPOCH]
        if rising:
            epochs += [*rising[:1], *rising, *rising[-1:]]
    return epochs


class TestHonest:
    @given(st.data(), st.booleans())
    def test_an_honest_batch_is_never_taken_for_damaged(self, data: st.DataObject, is_reset: bool) -> None:
        epochs = data.draw(reset() if is_reset else risen())
        gaps = data.draw(st.lists(st.integers(0, 9), min_size=len(epochs), max_size=len(epochs)))
        found = segment_of(list(zip(gaps, epochs, strict=True)))
        known = [each for each in epochs if each != NO_EPOCH]
        before = data.draw(st.sampled_from([None, *known[:1]]))
        highest = data.draw(st.integers(0, 3))  # nothing since was noted
        assert judged(found, before=before, highest=highest) == found

    @given(risen(), st.data())
    def test_a_part_of_a_log_after_compaction_or_retention(self, epochs: list[int], data: st.DataObject) -> None:
        kept = data.draw(st.lists(st.booleans(), min_size=len(epochs), max_size=len(epochs)))
        left = [epoch for epoch, is_kept in zip(epochs, kept, strict=True) if is_kept]
        assert not altered_in(*left, highest=0)

    @given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=2 * HELD_MAX))
    def test_old_formats_have_no_epoch(self, epochs: list[int]) -> None:
        found = segment_of([(0, epoch) for epoch in epochs], magic=1)
        assert judged(found) == found

    def test_the_first_batch_of_an_epoch_far_above_the_recorded_epochs(self) -> None:
        assert not altered_in(3, 3, ELECTIONS_UNNOTED, highest=3)


class TestAltered:
    @given(risen(), st.integers(21, 31), st.data())
    def test_any_batch_with_a_high_bit_flipped(self, epochs: list[int], bit: int, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(epochs) - 1))
        if epochs[at] == NO_EPOCH:
            epochs[at] = max(epochs[:at], default=0)
            epochs[at] = max(epochs[at], 0)
        flipped = epochs[at] ^ (1 << bit)
        flipped -= (1 << 32) if flipped >= 1 << 31 else 0
        assert altered_in(*epochs[:at], flipped, *epochs[at + 1 :]) == [at]

    @given(st.integers(0, 40), st.integers(0, 1 << 20), st.integers(1, 5), st.integers(1, 5))
    def test_any_epoch_between_two_equal_ones(self, epoch: int, other: int, before: int, behind: int) -> None:
        found = altered_in(*[epoch] * before, other, *[epoch] * behind)
        assert found == ([before] if other != epoch else [])

    @pytest.mark.parametrize(
        ("before", "epochs", "altered"),
        [
            (None, (4, 4, 9, 4, 4), [2]),
            (None, (4, 4, 1, 4, 4), [2]),
            (None, (4, 4, 1, 5), [2]),
            (None, (3, 4, 0, 5), [2]),
            (None, (4, 5, 4, 5), [1, 2]),  # either was altered
            (None, (3, 6, 4, 8), [1, 2]),
            (None, (4, 4, 9, 4), [2]),
            (4, (1, 4, 4), [0]),
            (4, (9, 4), [0]),
            (None, (9, 4, 4), []),  # a log written by Kafka may begin this way
            (None, (4, 4, 1), []),
            (None, (4, 4, 1, 1), []),
            (9, (4, 4), []),
        ],
    )
    def test_examples(self, before: int | None, epochs: tuple[int, ...], altered: list[int]) -> None:
        assert altered_in(*epochs, before=before) == altered

    def test_a_single_pair_is_decided_by_its_context(self) -> None:
        assert altered_of(None, 5, 4) == ()
        assert altered_of(4, 5, 4) == (0,)
        assert altered_of(5, 5, 4, 5) == (1,)
        assert altered_of(None, 9, 4, 12) == (0, 1)

    def test_adjacent_damage_becomes_one_range(self) -> None:
        first, _, third, fourth, fifth = segment_of([(0, 4), (0, 4), (0, 9), (0, 4), (0, 4)])
        damage = DamagedBytes(SIZE, 2 * SIZE, 1, 1, "a bad checksum")
        found = judged([first, damage, third, fourth, fifth])
        assert found == [first, DamagedBytes(SIZE, 3 * SIZE, 1, 2, "a bad checksum"), fourth, fifth]

    def test_the_last_batch_reaches_to_the_end_of_the_segment(self) -> None:
        first, last = segment_of([(0, 4), (3, 1 << 24)])
        found = judged([first, last])
        assert [(each.first_offset, each.last_offset) for each in found[1:] if isinstance(each, DamagedBytes)] == [
            (1, 10_000)
        ]

    def test_few_batches_are_held(self) -> None:
        batches = iter(segment_of([(0, 0), *[(0, NO_EPOCH)] * 100]))
        next(without_altered(batches, first_offset=0, last_offset=200, before=None, highest=0))
        assert len(list(batches)) >= 100 - HELD_MAX
