"""The iteration over batches that verifies them: it covers all bytes, whatever they are, and returns only valid
batches."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.storage.damage.checked_batches import CheckedBatch, CheckedBatches
from parley.storage.damage.damaged_ranges import DamagedBytes, joined
from parley.storage.damage.unverified_spans import Spans, first_in, overlap, verified_before, without
from parley.storage.segment_file import SegmentFile
from tests.storage.logs import batch_of
from tests.storage.test_log_fuzz import damaged
from tests.support.proportion import examples


def walk(path: Path, data: bytes, end_offset: int) -> list[CheckedBatch | DamagedBytes]:
    path.write_bytes(data)
    return list(CheckedBatches(SegmentFile(path), len(data), 0, end_offset).walk(0, len(data), 0))


def segment(count: int) -> tuple[bytes, list[int]]:
    """Return the bytes of ``count`` batches of two records each, and the position of each batch."""
    data, positions = b"", []
    for n in range(count):
        positions.append(len(data))
        data += batch_of(b"%d" % n * 9, b"\x02" * (n % 50), base_offset=2 * n, partition_leader_epoch=3)
    return data, positions


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32), noise=st.binary(max_size=300))
def test_all_bytes_are_batches_or_damage(tmp_path_factory: pytest.TempPathFactory, seed: int, noise: bytes) -> None:
    random, path = Random(seed), tmp_path_factory.getbasetemp() / "segment.log"
    whole, _ = segment(30)
    data = random.choice([damaged(whole, random), whole + noise, noise, noise + whole])
    position, expected = 0, 0
    for found in walk(path, data, 60):
        assert found.position == position
        if isinstance(found, DamagedBytes):
            assert position < found.end
            assert found.first_offset == expected
            position, expected = found.end, found.last_offset + 1
        else:
            assert found.header.base_offset >= expected
            assert found.data is not None
            assert bytes(found.data[21:]) in whole  # within the bytes that the batch's checksum covers
            position += found.header.size_bytes
            expected = found.header.next_offset
    assert position == len(data)


@pytest.mark.parametrize("at", [0, 7, 8, 11, 12, 15, 16, 17, 20, 23, 60, 62])
def test_one_changed_byte_damages_one_batch_at_most(tmp_path: Path, at: int) -> None:
    whole, positions = segment(10)
    for bit in range(8):
        data = bytearray(whole)
        data[positions[4] + at] ^= 1 << bit
        damage = [each for each in walk(tmp_path / "0.log", bytes(data), 20) if isinstance(each, DamagedBytes)]
        assert damage == [] or [(each.position, each.end) for each in damage] == [(positions[4], positions[5])]
        assert [(each.first_offset, each.last_offset) for each in damage] in ([], [(8, 9)])
        assert damage or 7 <= at < 16  # the checksum covers neither a slightly higher offset nor the leader epoch


SPAN = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair) + 1))


@given(removed=st.lists(SPAN, max_size=6))
def test_spans_are_sets_of_bytes(removed: list[tuple[int, int]]) -> None:
    spans: Spans = ((0, 40),)
    left = set(range(40))
    for begin, end in removed:
        assert overlap(spans, begin, end) == bool(left & set(range(begin, end)))
        assert first_in(spans, begin, end) == min(left & set(range(begin, end)), default=end)
        assert verified_before(spans, begin) == begin - 1 - max(left & set(range(begin)), default=-1)
        spans = without(spans, begin, end)
        left -= set(range(begin, end))
        assert {n for first, last in spans for n in range(first, last)} == left
        assert all(first < last for first, last in spans)


def test_damage_that_touches_is_joined() -> None:
    def damage(position: int, end: int) -> DamagedBytes:
        return DamagedBytes(position, end, position // 10, end // 10 - 1, f"at {position}")

    assert joined([damage(0, 10), damage(40, 60)], [damage(50, 90), damage(20, 40)]) == (
        damage(0, 10),
        damage(20, 90),
    )
