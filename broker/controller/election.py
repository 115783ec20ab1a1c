"""Who leads a partition: the pure rule that every change of leader goes through.

The first replica, in order of preference, that is alive and in sync leads. Where none is, the partition has no leader,
unless unclean election is allowed: then the first living replica leads, alone in the ISR, and records that only the
others held are lost. The ISR never becomes empty: its last members are remembered as those who may lead again.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from broker.metadata.types import NO_LEADER, PartitionState


def elect_leader(state: PartitionState, live: Container[int], *, unclean: bool = False) -> PartitionState:
    """The partition's state once the dead replicas are out of its ISR and a leader is chosen among the living.

    The leader epoch rises when the leader changes, the partition epoch when anything does; with nothing to change the
    same value is answered.
    """
    isr = tuple(broker for broker in state.isr if broker in live)
    in_sync = [broker for broker in state.replicas if broker in isr]
    if in_sync:
        leader = state.leader if state.leader in in_sync else in_sync[0]
        return _with(state, leader, isr)
    living = next((broker for broker in state.replicas if broker in live), NO_LEADER)
    if unclean and living != NO_LEADER:
        return _with(state, living, (living,))
    return _with(state, NO_LEADER, state.isr)


def _with(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    if leader == state.leader and isr == state.isr:
        return state
    return replace(
        state,
        leader=leader,
        isr=isr,
        leader_epoch=state.leader_epoch + (leader != state.leader),
        partition_epoch=state.partition_epoch + 1,
    )
