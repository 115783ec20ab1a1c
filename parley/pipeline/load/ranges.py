"""Decides which offsets become which file. Pure decisions, no I/O.

The name of a file shows its records: ``topic+partition+first+last.parquet``, with the first and last offset of its
range in twenty digits, so that names sort like offsets. If a range is partitioned by event time, several folders
contain a file with that name. The ranges of a partition are contiguous: a file beyond the end of the last commit was
never committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from parley.pipeline.client.fetching import TopicPartition

DIGITS: Final = 20
_NAME: Final = re.compile(
    r"(?P<topic>.+)\+(?P<partition>\d+)\+(?P<first>\d{20})\+(?P<last>\d{20})(?:\.\d+)?\.[a-z]+(?:\.[a-z]+)*"
)


class RecordsGone(Exception):
    """Raised if records were deleted from the topic before they were loaded. The message says which records."""


class TopicRecreated(Exception):
    """Raised if the topic is not the one that was loaded, or is shorter than what was loaded. The message gives
    details.
    """


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [``first``, ``end``) of a partition."""

    partition: TopicPartition
    first: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.first

    def file_name(self, extension: str, number: int = 0) -> str:
        """Return the name of the file with these records. ``number`` distinguishes several files in one folder."""
        topic, partition = self.partition
        more = f".{number}" if number else ""
        return f"{topic}+{partition}+{self.first:0{DIGITS}}+{self.end - 1:0{DIGITS}}{more}.{extension}"


def range_of(file_name: str) -> OffsetRange | None:
    """Return the range of a file's records, from its name; None if the name is not one of Parley's."""
    found = _NAME.fullmatch(file_name)
    if found is None:
        return None
    place = TopicPartition(found["topic"], int(found["partition"]))
    return OffsetRange(place, int(found["first"]), int(found["last"]) + 1)


def is_stray(file_name: str, topic: str, positions: Mapping[int, int]) -> bool:
    """Return True if the file belongs to the topic but was never committed: a killed load has left it."""
    found = range_of(file_name)
    if found is None or found.partition.topic != topic:
        return False
    return found.end > positions.get(found.partition.partition, 0)


def missing(
    topic: str, positions: Mapping[int, int], begins: Mapping[int, int], ends: Mapping[int, int], *, accept_loss: bool
) -> list[OffsetRange]:
    """Return the ranges to load, up to ``ends``. A partition begins at its position. Without one, it begins at its
    offset in ``begins`` in the first load; in later loads it is new and begins at offset 0.

    Raises TopicRecreated if a partition ends before its position, and RecordsGone if records to load were deleted,
    unless ``accept_loss`` is set.
    """
    found = []
    for partition, end in sorted(ends.items()):
        begin = begins[partition]
        first = positions.get(partition, 0 if positions else begin)
        place = TopicPartition(topic, partition)
        if first > end:
            raise TopicRecreated(
                f"{place} ends at offset {end}, but was loaded up to {first}: if the topic was created again, use "
                "another folder"
            )
        if first < begin and not accept_loss:
            raise RecordsGone(f"offsets {first} to {begin - 1} of {place} were deleted before they were loaded")
        if max(first, begin) < end:
            found.append(OffsetRange(place, max(first, begin), end))
    return found


def rounds(wanted: list[OffsetRange], per_file: int, at_once: int) -> Iterator[list[OffsetRange]]:
    """Cut ranges into pieces of at most ``per_file`` offsets, in rounds of about ``at_once`` pieces.

    The pieces of a partition stay in order. Each round takes pieces from all partitions in turn.
    """
    left = {one.partition: one for one in wanted}
    while left:
        some: list[OffsetRange] = []
        while left and len(some) < at_once:
            for place, one in list(left.items()):
                cut = OffsetRange(place, one.first, min(one.end, one.first + per_file))
                some.append(cut)
                if cut.end == one.end:
                    del left[place]
                else:
                    left[place] = OffsetRange(place, cut.end, one.end)
        yield some
