"""Divides the changes of a batch into deltas that each broker applies in a few milliseconds.

The death of a broker can change all partitions. Applying 50,000 changes at once would stop the event loop of every
broker for half a second. So the batch, which is already in the store, is published in steps.

A broker may see the image between two steps, just as the next controller may load a batch that was only partly written.
So a registration is published in the last step, together with all changes after it: when a broker sees that it is
registered, its replicas that have lost their logs must have left the ISRs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parley.broker.metadata.changes import BrokerRegistered, Change, partitions_in

PARTITIONS_PER_STEP: Final = 500
"""The maximum number of partitions in a step. A step exceeds it only if a single change does, or if the step contains a
registration. Each partition takes 10 to 20 microseconds on each broker."""


def in_steps(changes: Sequence[Change]) -> list[tuple[Change, ...]]:
    """Return the changes in their order, divided into steps of at most ``PARTITIONS_PER_STEP`` partitions.

    A registration and all changes after it belong to the last step.
    """
    steps: list[list[Change]] = [[]]
    room = PARTITIONS_PER_STEP
    for number, change in enumerate(changes):
        if isinstance(change, BrokerRegistered):
            steps[-1] += changes[number:]
            break
        partitions = partitions_in(change)
        if partitions > max(room, 0) and room < PARTITIONS_PER_STEP:
            steps.append([])
            room = PARTITIONS_PER_STEP
        room -= partitions
        steps[-1].append(change)
    return [tuple(step) for step in steps]
