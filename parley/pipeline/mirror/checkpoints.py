"""Decides which committed offsets of consumer groups are mirrored to the target (KIP-382, KIP-545). No I/O.

A checkpoint is written for a group and partition if it is new: the group has advanced, or was reset on the source. An
offset is committed on the target only while the group has no members there, and never moves a committed offset back: a
group that has read further on the target keeps its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.client.group_offsets import Committed
from parley.pipeline.mirror.internal_records import Checkpoint

EMPTY_STATES: Final = frozenset({"Empty", "Dead", ""})
"""The states of a group without members. A group that the target does not know has no members."""


Translate = Callable[[str, int, int], int | None]
Known = Mapping[tuple[str, TopicPartition], Checkpoint]


def new_checkpoints(
    group: str,
    committed: Mapping[TopicPartition, Committed],
    translate: Translate,
    rename: Callable[[str], str],
    known: Known,
) -> list[Checkpoint]:
    """Return the checkpoints to write for a group with these committed offsets.

    ``known`` are the last written checkpoints, by group and target partition. Offsets that cannot be translated are
    left out.
    """
    found = []
    for place, offset in sorted(committed.items()):
        downstream = translate(place.topic, place.partition, offset.offset)
        if offset.offset < 0 or downstream is None or downstream < 0:
            continue
        topic = rename(place.topic)
        made = Checkpoint(group, topic, place.partition, offset.offset, downstream, offset.metadata)
        before = known.get((group, TopicPartition(topic, place.partition)))
        if before is None or made.upstream < before.upstream or made.downstream > before.downstream:
            found.append(made)
    return found


def to_commit(
    checkpoints: Iterable[Checkpoint], state: str, committed: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, Committed]:
    """Return the offsets to commit for one group on the target; empty if the group has members there. ``state`` and
    ``committed`` are the group's state and offsets on the target.
    """
    if state not in EMPTY_STATES:
        return {}
    wanted = {}
    for one in checkpoints:
        place = TopicPartition(one.topic, one.partition)
        there = committed.get(place)
        if there is None or there.offset < one.downstream:
            wanted[place] = Committed(one.downstream, one.metadata)
    return wanted
