"""The batches of a share partition: how changes are merged into what is stored.

Of two states of an offset, the one with the higher delivery count counts, then the one with the higher number of its
delivery state: records move on from available to acknowledged or archived, and their delivery counts only rise.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from parley.broker.coordinators.share_state.persister import StateBatch


def combined(known: Iterable[StateBatch], added: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Return all batches in the order of offsets, without overlaps. Neighbours with the same state become one.

    What is before ``start_offset`` is left out, unless that is -1.
    """
    clipped = [
        each._replace(first_offset=max(each.first_offset, start_offset))
        for each in (*known, *added)
        if each.last_offset >= start_offset
    ]
    clipped.sort()
    merged: list[StateBatch] = []
    open_batches: list[tuple[int, int, int]] = []  # those at ``offset``, the one that counts first
    position, offset = 0, 0
    while position < len(clipped) or open_batches:
        if not open_batches:
            offset = clipped[position].first_offset
        while position < len(clipped) and clipped[position].first_offset <= offset:
            batch = clipped[position]
            heappush(open_batches, (-batch.delivery_count, -batch.delivery_state, batch.last_offset))
            position += 1
        count, state, last = open_batches[0]
        if last < offset:
            heappop(open_batches)
            continue
        if position < len(clipped):
            last = min(last, clipped[position].first_offset - 1)
        append_batch(merged, StateBatch(offset, last, -state, -count))
        offset = last + 1
    return tuple(merged)


def append_batch(batches: list[StateBatch], batch: StateBatch) -> None:
    """Add the batch that follows, joined with the one before if both touch and have the same state."""
    if batches and batches[-1].last_offset + 1 == batch.first_offset and batches[-1][2:] == batch[2:]:
        batch = batch._replace(first_offset=batches.pop().first_offset)
    batches.append(batch)
