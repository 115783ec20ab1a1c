"""Decisions about the offsets of a query. Nothing here connects to a cluster.

A query's position is an ``Offsets``: for each partition the offset to read next. In a checkpoint it is the JSON of
Spark's Kafka source (``{"topic": {"0": 23}}``), so a query can change from one format to the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

from parley.pipeline.client.cluster import TopicPartition

Offsets = Mapping[TopicPartition, int]


def as_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return the JSON of a position. It is sorted, because Spark compares the texts of two positions."""
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return found


def from_json(found: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Parse a position from the JSON of ``as_json``, or of Spark's Kafka source."""
    return {TopicPartition(topic, int(number)): offset for topic, of in found.items() for number, offset in of.items()}


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets [``start``, ``end``) of a partition."""

    partition: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def ranges(start: Offsets, end: Offsets, earliest_of_new: Offsets) -> list[Range]:
    """Return the non-empty ranges between two positions. A partition that ``start`` lacks is new: it starts at its
    offset in ``earliest_of_new``, and is left out if that lacks it too.
    """
    found = [
        Range(partition, start.get(partition, earliest_of_new.get(partition, end_offset)), end_offset)
        for partition, end_offset in sorted(end.items())
    ]
    return [one for one in found if len(one)]


# The size of a batch (Spark's admission control).


def new_rows(start: Offsets, latest: Offsets, earliest_of_new: Offsets) -> int:
    """Return the number of offsets between two positions. New partitions are counted as by ``ranges``."""
    return sum(map(len, ranges(start, latest, earliest_of_new)))


def limited(limit: int, start: Offsets, latest: Offsets, earliest_of_new: Offsets) -> dict[TopicPartition, int]:
    """Return the end position of a batch of about ``limit`` offsets.

    Each partition contributes in proportion to its available offsets, but at least one. So a batch may exceed the limit
    by one offset per partition.
    """
    todo = {one.partition: one for one in ranges(start, latest, earliest_of_new)}
    total = sum(map(len, todo.values()))
    end = dict(latest)
    for partition, one in todo.items():
        share = limit * (len(one) / total)
        end[partition] = min(one.end, one.start + (math.ceil(share) if share < 1 else math.floor(share)))
    return end


# How the ranges of a batch become tasks.


def pieces(whole: Iterable[Range], at_least: int | None, rows_at_most: int | None) -> list[Range]:
    """Cut ranges for Spark's tasks: at most ``rows_at_most`` offsets each, and about ``at_least`` pieces or more.

    If there are fewer than ``at_least`` ranges, the large ranges are cut in proportion to their size.
    """
    cut = [one for one in whole if len(one)]
    if rows_at_most is not None:
        cut = [piece for one in cut for piece in _cut(one, math.ceil(len(one) / rows_at_most))]
    if at_least is None or at_least <= len(cut):
        return cut
    total = sum(map(len, cut))
    small = {one for one in cut if _share(one, total, at_least) == 1}
    large_total = total - sum(map(len, small))
    return [
        piece
        for one in cut
        for piece in ([one] if one in small else _cut(one, _share(one, large_total, at_least - len(small))))
    ]


_FEW: Final = 1000
"""The maximum number of offsets in combined ranges. A task costs Spark as much as reading about ten thousand rows, but
more tasks process the rows faster.
"""


def packed(whole: Iterable[Range], few: int = _FEW) -> Iterator[tuple[Range, ...]]:
    """Combine small ranges: at most ``few`` offsets for a task, unless one range is larger."""
    together: list[Range] = []
    for one in whole:
        if together and sum(map(len, together)) + len(one) > few:
            yield tuple(together)
            together = []
        together.append(one)
    if together:
        yield tuple(together)


def _share(one: Range, total: int, parts: int) -> int:
    return max(1, round(len(one) / total * parts))


def _cut(one: Range, parts: int) -> Iterator[Range]:
    sizes = (len(one) * (number + 1) // parts - len(one) * number // parts for number in range(parts))
    for start, end in pairwise(accumulate(sizes, initial=one.start)):
        if start < end:
            yield Range(one.partition, start, end)


# Lost data.


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss: data that a query should have read no longer exists. The message is for the user."""

    partition: TopicPartition
    text: str


def losses(start: Offsets, end: Offsets, earliest_of_new: Offsets) -> list[Loss]:
    """Return the losses that are visible in two positions: deleted partitions, partitions found too late, and ends that
    moved back.
    """
    found = [
        Loss(partition, f"{partition} no longer exists; its records from offset {start[partition]} on were not read")
        for partition in sorted(start.keys() - end.keys())
    ]
    for partition in sorted(end.keys() - start.keys()):
        first = earliest_of_new.get(partition)
        if first is None:
            found.append(Loss(partition, f"the new {partition} no longer exists, and was not read"))
        elif first > 0:
            found.append(Loss(partition, f"{partition} is new and begins at offset {first}, not 0"))
    for partition in sorted(start.keys() & end.keys()):
        if end[partition] < start[partition]:
            text = f"{partition} ends at offset {end[partition]}, before {start[partition]}, up to which it was read"
            found.append(Loss(partition, f"{text}: the topic was truncated, or deleted and created again"))
    return found
