"""Offset translation: a reader that continues on the target misses no record, and rereads as few as possible."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from parley.pipeline.mirror.translation import RUNS_MAX, Translation


def of(*syncs: tuple[int, int]) -> Translation:
    translation = Translation()
    for sync in syncs:
        translation.add(*sync)
    return translation


def test_nothing_is_known_before_the_first_sync() -> None:
    assert Translation().downstream(5) is None
    assert of((10, 0)).downstream(9) is None


def test_between_two_syncs_of_one_distance_every_offset_is_exact() -> None:
    translation = of((10, 0), (110, 100))
    assert [translation.downstream(offset) for offset in (10, 11, 60, 110, 111)] == [0, 1, 50, 100, 101]


def test_behind_the_last_sync_it_is_the_next_record() -> None:
    assert of((10, 0), (110, 100)).downstream(500) == 101


def test_between_two_runs_it_is_the_end_of_the_first() -> None:
    translation = of((0, 0), (9, 9), (20, 10))
    assert [translation.downstream(offset) for offset in (9, 10, 19, 20, 21)] == [9, 10, 10, 10, 11]


def test_offsets_of_a_recreated_topic_are_translated_from_the_beginning() -> None:
    translation = of((100, 100), (5, 200))
    assert translation.downstream(100) == 201
    assert translation.downstream(5) == 200
    assert translation.downstream(4) is None


def test_a_record_copied_twice_counts_where_it_stands_last() -> None:
    translation = of((0, 0), (9, 9), (9, 20))
    assert [translation.downstream(offset) for offset in (8, 9, 10)] == [8, 20, 21]


def test_it_does_not_grow_without_bounds() -> None:
    translation = of(*((2 * number, number) for number in range(RUNS_MAX + 10)))
    assert translation.downstream(0) is None
    assert translation.downstream(2 * (RUNS_MAX + 9)) == RUNS_MAX + 9


@given(st.lists(st.integers(1, 3), min_size=1, max_size=60), st.data())
def test_no_reader_misses_a_record(steps: list[int], data: st.DataObject) -> None:
    """Records were copied in order, with gaps. Syncs were written for some of them, including the ends of runs."""
    copied = [sum(steps[: number + 1]) for number in range(len(steps))]
    ends = {0, len(copied) - 1}
    ends |= {each for n in range(1, len(copied)) if copied[n] != copied[n - 1] + 1 for each in (n - 1, n)}
    some = data.draw(st.sets(st.integers(0, len(copied) - 1)))
    translation = of(*((copied[number], number) for number in sorted(ends | some)))
    for upstream in range(copied[0], copied[-1] + 5):
        exact = bisect_left(copied, upstream)
        assert translation.downstream(upstream) == exact
    fewer = of(*((copied[number], number) for number in sorted(some | {0})))
    for upstream in range(copied[0], copied[-1] + 5):
        found = fewer.downstream(upstream)
        assert found is not None
        assert found <= bisect_left(copied, upstream)


def test_the_source_offset_of_a_truncated_target_is_found() -> None:
    found = Translation()
    for upstream, downstream in ((10, 0), (14, 4), (20, 5), (29, 14)):
        found.add(upstream, downstream)
    # Records 10 to 14 are 0 to 4, and 20 to 29 are 5 to 14.
    assert [found.upstream(cut) for cut in (0, 3, 4, 5, 6, 14, 15, 20)] == [10, 13, 14, 20, 21, 29, 30, 30]
    later = Translation()
    later.add(10, 5)
    assert later.upstream(4) is None
