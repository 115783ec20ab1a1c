"""The division of offsets into files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.load.ranges import OffsetRange, RecordsGone, TopicRecreated, is_stray, missing, range_of, rounds

T0 = TopicPartition("t", 0)


def test_the_name_of_a_file_describes_its_contents() -> None:
    one = OffsetRange(TopicPartition("a.b-c", 3), 0, 100)
    assert one.file_name("parquet") == "a.b-c+3+00000000000000000000+00000000000000000099.parquet"
    assert range_of(one.file_name("parquet")) == range_of(one.file_name("json", 2)) == one
    assert range_of("part-0001.parquet") is None


def test_a_file_after_the_committed_offsets_is_a_stray() -> None:
    name = OffsetRange(T0, 100, 200).file_name("csv")
    assert is_stray(name, "t", {0: 100})
    assert is_stray(name, "t", {})
    assert is_stray(name, "t", {0: 150})  # from a load with larger ranges than the one that committed
    assert not is_stray(name, "t", {0: 200})
    assert not is_stray(name, "other", {})
    assert not is_stray("mine.csv", "t", {})


def test_missing_ranges_lie_between_loaded_and_end_offsets() -> None:
    found = missing("t", {0: 5, 1: 7}, {0: 0, 1: 0, 2: 0}, {0: 9, 1: 7, 2: 4}, accept_loss=False)
    assert found == [OffsetRange(T0, 5, 9), OffsetRange(TopicPartition("t", 2), 0, 4)]
    assert missing("t", {}, {0: 3}, {0: 9}, accept_loss=False) == [OffsetRange(T0, 3, 9)]


def test_a_partition_that_came_later_is_missing_from_its_beginning() -> None:
    with pytest.raises(RecordsGone, match="offsets 0 to 2 of t-1 were deleted"):
        missing("t", {0: 5}, {0: 0, 1: 3}, {0: 5, 1: 4}, accept_loss=False)


def test_lost_records_are_not_passed_over_in_silence() -> None:
    with pytest.raises(RecordsGone, match="offsets 5 to 7 of t-0 were deleted"):
        missing("t", {0: 5}, {0: 8}, {0: 9}, accept_loss=False)
    assert missing("t", {0: 5}, {0: 8}, {0: 9}, accept_loss=True) == [OffsetRange(T0, 8, 9)]
    with pytest.raises(TopicRecreated, match="use another folder"):
        missing("t", {0: 5}, {0: 0}, {0: 2}, accept_loss=True)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60)), min_size=1, max_size=6),
    st.integers(1, 20),
    st.integers(1, 8),
)
def test_rounds_cover_everything_once_and_in_order(spans: list[tuple[int, int]], per_file: int, at_once: int) -> None:
    wanted = [OffsetRange(TopicPartition("t", n), first, first + size) for n, (first, size) in enumerate(spans)]
    positions = {one.partition: one.first for one in wanted}
    for some in rounds(wanted, per_file, at_once):
        assert len(some) < at_once + len(wanted)
        for one in some:
            assert one.first == positions[one.partition]
            assert one.length <= per_file
            positions[one.partition] = one.end
    assert positions == {one.partition: one.end for one in wanted}
