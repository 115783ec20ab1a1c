"""Who leads a partition: the pure rule that every change of a partition's state goes through.

* The first replica, in order of preference, that is alive and in sync leads; a leader that is both stays.
* Where none is, the partition has no leader, unless unclean election is allowed: then the first living replica leads,
  alone in the ISR, and records that only the others held are lost.
* The dead leave the ISR as soon as a living member remains. It never becomes empty: its last members are remembered as
  those who may lead again.
* A member of the ISR that is alive always leads a partition that has no other leader, unless it has told that it lost
  the disk (ReportOfflineReplicas). So a partition without a leader names those who have: the living of its ISR. They
  are no candidates until they register anew (:func:`candidates`).
* A reassignment (KIP-455) is over when every replica it adds is in sync; those it removes leave in the same step.
* The leader epoch rises when the leader changes, the partition epoch when anything does.
"""

from __future__ import annotations

from collections.abc import Container, Set
from dataclasses import replace

from parley.broker.metadata.types import NO_LEADER, PartitionState


def candidates(state: PartitionState, live: Set[int]) -> Set[int]:
    """Who of the living may be elected: not who has told that the partition's disk failed.

    To be asked of a state that all decisions have been carried out for, and of those who were alive then.
    """
    return live if state.leader != NO_LEADER else live - set(state.isr)


def elect_leader(state: PartitionState, live: Container[int], *, unclean: bool = False) -> PartitionState:
    """The partition's state once the dead replicas are out of its ISR and a leader is chosen among the living.

    With nothing to change the same value is answered.
    """
    return next_state(state, state, live, unclean=unclean)


def next_state(
    known: PartitionState, wanted: PartitionState, live: Container[int], *, unclean: bool = False
) -> PartitionState:
    """The state that comes after ``known`` when the partition is to be as ``wanted`` says, by the rules above.

    The epochs of ``wanted`` are not looked at. Its leader is kept if it may lead; its ISR may be empty only where
    ``unclean`` allows to elect somebody. With nothing to change ``known`` itself is answered.
    """
    isr = tuple(broker for broker in wanted.isr if broker in live)
    if not isr and unclean:
        isr = next(((broker,) for broker in _fullest_first(wanted) if broker in live), ())
    settled = wanted if not isr or isr == wanted.isr else replace(wanted, isr=isr)
    if settled.adding or settled.removing:
        settled = _complete(settled)
    leader = _leader(settled, live)
    if leader == known.leader and _same_places(settled, known):
        return known
    return replace(
        settled,
        leader=leader,
        leader_epoch=known.leader_epoch + (leader != known.leader),
        partition_epoch=known.partition_epoch + 1,
    )


def _same_places(one: PartitionState, other: PartitionState) -> bool:
    return (one.isr, one.replicas, one.adding, one.removing) == (
        other.isr,
        other.replicas,
        other.adding,
        other.removing,
    )


def _fullest_first(state: PartitionState) -> list[int]:
    """The replicas by preference, but after all others those that a reassignment has only begun to fill."""
    return sorted(state.replicas, key=lambda broker: broker in state.adding)


def _leader(state: PartitionState, live: Container[int]) -> int:
    if state.leader in state.isr and state.leader in live:
        return state.leader
    return next((broker for broker in state.replicas if broker in state.isr and broker in live), NO_LEADER)


def _complete(state: PartitionState) -> PartitionState:
    isr = tuple(broker for broker in state.isr if broker not in state.removing)
    if not isr or any(broker not in isr for broker in state.adding):
        return state
    replicas = tuple(broker for broker in state.replicas if broker not in state.removing)
    return replace(state, replicas=replicas, isr=isr, adding=(), removing=())
