"""Which replica leads a partition: the pure rule that every change of a partition's state goes through.

* The leader is the first replica, in order of preference, that is alive and in the ISR. A leader that is both stays.
* If there is none, the partition has no leader. With unclean election the first live replica then leads, alone in the
  ISR; records that only other replicas have are lost.
* Dead replicas leave the ISR if a live one remains in it. The ISR is never empty: its last members may lead again.
* A live member of the ISR leads, unless it has reported a failed disk. So the live ISR members of a partition without
  a leader have failed disks, and are not electable until they register again.
* A reassignment (KIP-455) is complete when every replica it adds is in the ISR; those it removes leave at that moment.
"""

from __future__ import annotations

from collections.abc import Container, Set
from dataclasses import replace

from parley.broker.metadata.types import NO_LEADER, PartitionState


def electable(state: PartitionState, live: Set[int]) -> Set[int]:
    """Return the live brokers without those that have reported a failed disk for this partition.

    ``state`` must be one that a decision has led to, and ``live`` the brokers that were alive for that decision.
    """
    return live if state.leader != NO_LEADER else live - set(state.isr)


def elect_leader(state: PartitionState, live: Container[int], *, unclean: bool = False) -> PartitionState:
    """Remove dead replicas from the ISR and elect a leader among the live ones.

    Returns the same object if nothing changes.
    """
    return next_partition_state(state, state, live, unclean=unclean)


def next_partition_state(
    known: PartitionState, wanted: PartitionState, live: Container[int], *, unclean: bool = False
) -> PartitionState:
    """Return the state that follows ``known`` when a decision wants ``wanted``, by the rules above.

    The epochs of ``wanted`` are ignored. Its leader is kept if it may lead. Its ISR may be empty only if ``unclean``
    allows an election outside the ISR. The leader epoch rises if the leader changes, the partition epoch if anything
    does. Returns ``known`` itself if nothing changes.
    """
    isr = tuple(broker for broker in wanted.isr if broker in live)
    if not isr and unclean:
        isr = next(((broker,) for broker in _complete_replicas_first(wanted) if broker in live), ())
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


def _complete_replicas_first(state: PartitionState) -> list[int]:
    """Return the replicas by preference, with those that a reassignment is still adding at the end."""
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
