"""Which offsets become which file. Decisions only.

The name of a file says which records are in it: ``topic+partition+first+last.parquet``, with the first and last offset
of the range it was made of, in twenty digits, so that names sort as offsets do. A range that is divided by event time
has a file of that name in several folders. Ranges of a partition follow each other: a file that ends behind where what
was committed ends was never committed.
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
    """Records that were not loaded yet were deleted from the topic; the text says which."""


class TopicRecreated(Exception):
    """The topic is not the one that was loaded, or ends before what was loaded of it; the text says so."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``first`` up to, not with, ``end`` of a partition."""

    partition: TopicPartition
    first: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.first

    def file_name(self, extension: str, number: int = 0) -> str:
        """The name of the file with its records; ``number`` tells apart several in one folder."""
        topic, partition = self.partition
        more = f".{number}" if number else ""
        return f"{topic}+{partition}+{self.first:0{DIGITS}}+{self.end - 1:0{DIGITS}}{more}.{extension}"


def range_of(file_name: str) -> OffsetRange | None:
    """The range whose records a file has, by its name; None for a name that is not ours."""
    found = _NAME.fullmatch(file_name)
    if found is None:
        return None
    place = TopicPartition(found["topic"], int(found["partition"]))
    return OffsetRange(place, int(found["first"]), int(found["last"]) + 1)


def is_stray(file_name: str, topic: str, positions: Mapping[int, int]) -> bool:
    """Whether a file was left by a load that did not get to its commit."""
    found = range_of(file_name)
    if found is None or found.partition.topic != topic:
        return False
    return found.end > positions.get(found.partition.partition, 0)


def missing(
    topic: str, positions: Mapping[int, int], begins: Mapping[int, int], ends: Mapping[int, int], *, accept_loss: bool
) -> list[OffsetRange]:
    """What is to be loaded of each partition: of one that came after the first load, everything.

    Raises TopicRecreated, and RecordsGone unless the loss is accepted.
    """
    found = []
    for partition, end in sorted(ends.items()):
        begin = begins[partition]
        first = positions.get(partition, 0 if positions else begin)
        place = TopicPartition(topic, partition)
        if first > end:
            raise TopicRecreated(
                f"{place} ends at offset {end}, but was loaded up to {first}: if the topic was created again, take "
                "another folder"
            )
        if first < begin and not accept_loss:
            raise RecordsGone(f"offsets {first} to {begin - 1} of {place} were deleted before they were loaded")
        if max(first, begin) < end:
            found.append(OffsetRange(place, max(first, begin), end))
    return found


def rounds(wanted: list[OffsetRange], per_file: int, at_once: int) -> Iterator[list[OffsetRange]]:
    """Cut into ranges of at most ``per_file`` offsets, in rounds of about ``at_once``.

    The ranges of a partition follow each other through the rounds, each of which takes of every partition in turn.
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
