"""A query's decisions about offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from parley.pipeline.client.cluster import TopicPartition
from parley.pipeline.format.offset_decisions import (
    Range,
    as_json,
    from_json,
    limited,
    losses,
    new_rows,
    packed,
    pieces,
    ranges,
)

A, B, C = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("c", 0)

_ranges = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**6)), min_size=1, max_size=8).map(
    lambda found: [Range(TopicPartition("t", number), at, at + size) for number, (at, size) in enumerate(found)]
)


def test_the_json_is_that_of_sparks_kafka_source() -> None:
    assert as_json({C: 3, B: 2, A: 1}) == {"a": {"0": 1, "1": 2}, "c": {"0": 3}}
    assert list(as_json({C: 3, A: 1})) == ["a", "c"]
    assert from_json({"a": {"0": 1, "1": 2}, "c": {"0": 3}}) == {A: 1, B: 2, C: 3}


def test_a_new_partition_begins_at_its_first_offset() -> None:
    assert ranges({A: 5}, {A: 9, B: 4}, {B: 1}) == [Range(A, 5, 9), Range(B, 1, 4)]
    assert ranges({A: 5, B: 7}, {A: 5, B: 6}, {}) == []
    assert new_rows({A: 5}, {A: 9, B: 4}, {B: 1}) == 7
    assert new_rows({A: 5, B: 7}, {A: 5, B: 6}, {}) == 0


def test_a_limit_is_shared_in_proportion_and_starves_no_partition() -> None:
    assert limited(100, {A: 0, B: 0}, {A: 900, B: 100}, {}) == {A: 90, B: 10}
    assert limited(10, {A: 0, B: 0}, {A: 1000, B: 1}, {}) == {A: 9, B: 1}
    assert limited(10, {A: 0}, {A: 5, C: 25}, {C: 20}) == {A: 5, C: 25}
    assert limited(10, {A: 7}, {A: 7}, {}) == {A: 7}


@given(_ranges, st.integers(1, 10**6))
def test_a_limited_batch_moves_on_and_stays_in_its_bounds(todo: list[Range], limit: int) -> None:
    start, latest = {one.partition: one.start for one in todo}, {one.partition: one.end for one in todo}
    end = limited(limit, start, latest, {})
    assert all(start[partition] <= end[partition] <= latest[partition] for partition in latest)
    assert new_rows(start, end, {}) <= limit + len(todo)
    if new_rows(start, latest, {}):
        assert new_rows(start, end, {})


@given(_ranges, st.none() | st.integers(1, 50), st.none() | st.integers(20_000, 10**6))
def test_pieces_cover_the_ranges_without_hole_or_overlap(
    whole: list[Range], at_least: int | None, rows_at_most: int | None
) -> None:
    cut = pieces(whole, at_least, rows_at_most)
    assert all(len(piece) for piece in cut)
    for one in whole:
        own = [piece for piece in cut if piece.partition == one.partition]
        bounds = [one.start, *(piece.end for piece in own)] if len(one) else [one.end]
        assert [piece.start for piece in own] == bounds[:-1]
        assert bounds[-1] == one.end
    if rows_at_most is not None:
        assert all(len(piece) <= rows_at_most for piece in cut)


def test_as_many_tasks_as_asked_for() -> None:
    assert pieces([Range(A, 0, 10), Range(B, 0, 0)], 3, None) == [Range(A, 0, 3), Range(A, 3, 6), Range(A, 6, 10)]
    assert len(pieces([Range(A, 0, 1000), Range(B, 0, 1)], 4, None)) == 4
    assert len(pieces([Range(A, 0, 10), Range(B, 0, 10), Range(C, 0, 10)], 2, None)) == 3
    assert len(pieces([Range(A, 0, 100)], None, 30)) == 4
    assert len(pieces([Range(A, 0, 100)], 8, 30)) == 8


@given(_ranges, st.integers(1, 10**6))
def test_small_ranges_share_tasks(whole: list[Range], few: int) -> None:
    tasks = list(packed(whole, few))
    assert [one for task in tasks for one in task] == whole
    assert all(len(task) == 1 or sum(map(len, task)) <= few for task in tasks)
    assert all(sum(map(len, one + other[:1])) > few for one, other in pairwise(tasks))


def test_lost_offsets_are_named() -> None:
    assert losses({A: 5}, {A: 5, B: 4}, {B: 0}) == []
    [gone] = losses({A: 5, B: 3}, {A: 5}, {})
    assert gone.partition == B
    assert "from offset 3 on" in gone.text
    [late] = losses({A: 5}, {A: 5, B: 4}, {B: 2})
    assert "begins at offset 2" in late.text
    [vanished] = losses({A: 5}, {A: 5, B: 4}, {})
    assert "no longer exists" in vanished.text
    [back] = losses({A: 5}, {A: 3}, {})
    assert "truncated, or deleted and created again" in back.text
