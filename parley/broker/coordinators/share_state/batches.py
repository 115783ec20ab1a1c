"""The batches of a share partition: merging changes into the stored batches.

If two batches contain the same offset, the higher delivery count wins, and among equal counts the delivery state with
the higher number: records move from available to acknowledged or archived, and their delivery counts only rise.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from parley.broker.coordinators.share_state.persister import StateBatch


def combined(known: Iterable[StateBatch], added: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Merge batches, and return them in the order of offsets, without overlaps. Adjacent batches with the same delivery
    state and delivery count are joined.

    Offsets before ``start_offset`` are dropped.
    """
    clipped = [
        each._replace(first_offset=max(each.first_offset, start_offset))
        for each in (*known, *added)
        if each.last_offset >= start_offset
    ]
    clipped.sort()
    merged: list[StateBatch] = []
    open_batches: list[tuple[int, int, int]] = []  # a heap of the batches that contain ``offset``, the winner first
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
    """Append a batch. If it directly follows the last one, and has the same delivery state and delivery count, extend
    the last one instead."""
    if batches and batches[-1].last_offset + 1 == batch.first_offset and batches[-1][2:] == batch[2:]:
        batch = batch._replace(first_offset=batches.pop().first_offset)
    batches.append(batch)
