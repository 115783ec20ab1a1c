"""Which replica leads a partition: the pure rule behind every change in a partition's state (KIP-966).

* A current leader that is alive and in the ISR stays. Otherwise the first live member of the ISR leads, in order of
  preference. If there is none, the first live replica in the ELR leads, and is then the only ISR member. If there is
  none either, the partition has no leader, and only a recovery can elect one (``unclean_leader_choice.py``).
* Dead replicas leave the ISR, which may become empty. ``eligible_leader_replicas.py`` decides which of them join the
  ELR.
* A ``suspect`` replica, which may have lost records, leaves the ISR and the ELR. If the ISR is then too small, the
  replica joins ``last_known_elr``, and a recovery waits for it. A ``lost`` replica also leaves ``last_known_elr``.
* A reassignment (KIP-455) is complete when every replica that it adds is in the ISR. The replicas that it removes leave
  at that moment.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import replace

from parley.broker.controller.elections.eligible_leader_replicas import (
    eligible_replicas,
    is_large_enough,
    last_known_while_led,
    next_elr,
    next_last_known_elr,
)
from parley.broker.metadata.types import NO_LEADER, UNASSIGNED_DIRECTORY, PartitionState
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID


def elect_leader(
    state: PartitionState,
    live: Container[int],
    min_isr: int,
    *,
    suspect: Collection[int] = (),
    lost: Collection[int] = (),
) -> PartitionState:
    """Return the state without dead, suspect and lost replicas in the ISR, and with a leader among the live replicas.

    The leader is ``NO_LEADER`` if no replica in the ISR or the ELR may lead. Returns ``state`` itself if nothing
    changes. ``min_isr`` is the topic's ``min.insync.replicas``.
    """
    return next_partition_state(state, state, live, min_isr, suspect=suspect, lost=lost)


def next_partition_state(
    known: PartitionState,
    wanted: PartitionState,
    live: Container[int],
    min_isr: int,
    *,
    suspect: Collection[int] = (),
    lost: Collection[int] = (),
) -> PartitionState:
    """Return the state that follows ``known`` if a decision requests the replicas, ISR and leader of ``wanted``.

    The rules at the head of this module apply to ``wanted``. The leader epoch increases if the leader changes, and the
    partition epoch if anything changes. Returns ``known`` itself if nothing changes.
    """
    isr = tuple([broker for broker in wanted.isr if broker in live and broker not in suspect and broker not in lost])
    settled = wanted if isr == wanted.isr else replace(wanted, isr=isr)
    if settled is known and known.leader in isr and not known.elr and not known.last_known_elr:
        return known  # by far the most frequent case
    settled = _complete(settled)
    eligible = eligible_replicas(known, settled.replicas, suspect, lost)
    leader = _leader(settled, eligible, live)
    isr = settled.isr or (() if leader == NO_LEADER else (leader,))
    elr = next_elr(eligible, isr, len(settled.replicas), min_isr)
    last_known_elr = next_last_known_elr(known, settled.replicas, suspect, lost)
    if is_large_enough(isr, len(settled.replicas), min_isr):
        last_known_elr = ()
    elif leader != NO_LEADER:
        last_known_elr = last_known_while_led(known, last_known_elr, isr, live)
    if (leader, isr, elr, last_known_elr) == (known.leader, known.isr, known.elr, known.last_known_elr) and (
        settled.replicas == known.replicas and settled.adding == known.adding and settled.removing == known.removing
    ):
        return known
    return PartitionState(
        settled.replicas,
        isr,
        leader,
        known.leader_epoch + (leader != known.leader),
        known.partition_epoch + 1,
        settled.adding,
        settled.removing,
        elr,
        last_known_elr,
        _directories(known, settled.replicas),
        known.unclean_epoch,
    )


def recovered(known: PartitionState, leader: int, *, unclean: bool, above: int = NO_EPOCH) -> PartitionState:
    """Return the state after a recovery: this replica leads, and is the only member of the ISR.

    ``unclean`` means that the leader may lack committed records, and that followers may truncate theirs. ``above`` is
    the highest leader epoch that a replica knows. It is above the epoch in ``known`` if the store was rolled back.

    A recovery completes no reassignment, even if its leader is the only added replica: the replicas that would leave
    may contain records that the leader lacks. The reassignment completes when another replica joins the ISR.
    """
    epoch = max(known.leader_epoch, above) + 1
    return replace(
        known,
        isr=(leader,),
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=known.partition_epoch + 1,
        elr=(),
        last_known_elr=(),
        unclean_epoch=epoch if unclean else known.unclean_epoch,
    )


def _directories(known: PartitionState, replicas: tuple[int, ...]) -> tuple[UUID, ...]:
    """Return the directory of each replica. A replica that is new to the partition is unassigned."""
    if not known.directories or replicas == known.replicas:
        return known.directories
    directories = tuple(map(known.directory, replicas))
    return () if set(directories) == {UNASSIGNED_DIRECTORY} else directories


def _leader(state: PartitionState, eligible: Iterable[int], live: Container[int]) -> int:
    if state.leader in state.isr and state.leader in live:
        return state.leader
    if state.isr:
        return next((broker for broker in state.replicas if broker in state.isr), NO_LEADER)
    return next((broker for broker in eligible if broker in live), NO_LEADER)


def _complete(state: PartitionState) -> PartitionState:
    if not (state.adding or state.removing):
        return state
    isr = tuple(broker for broker in state.isr if broker not in state.removing)
    if not isr or any(broker not in isr for broker in state.adding):
        return state
    replicas = tuple(broker for broker in state.replicas if broker not in state.removing)
    return replace(state, replicas=replicas, isr=isr, adding=(), removing=())
