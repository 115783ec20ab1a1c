"""Eligible leader replicas (ELR, KIP-966): replicas outside the ISR that contain all committed records.

A leader does not advance the high watermark while the ISR has fewer than ``min.insync.replicas`` members. A replica
that leaves the ISR, and leaves it too small, therefore contains all committed records, and joins the ELR. A ``suspect``
replica (it may have lost records) and a ``lost`` replica (it certainly has) are not eligible.

A suspect replica that leaves such an ISR or its ELR joins the last known ELR. If all eligible replicas are lost later
and the log of the suspect replica is intact, nothing is missing. (The leader may already have been dead when the
replica left, without the controller knowing.) When the ISR is large enough again, the ELR and the last known ELR are
cleared.

A recovery waits for every member of the last known ELR. So while a partition has a leader, dead replicas leave the last
known ELR. When a partition without a leader gets one, the last known ELR is cleared.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from parley.broker.metadata.types import NO_LEADER, PartitionState


def eligible_replicas(
    known: PartitionState, replicas: Iterable[int], suspect: Collection[int], lost: Collection[int]
) -> list[int]:
    """Return those of ``replicas`` that still contain all committed records: those in the ISR or the ELR of ``known``
    that are neither suspect nor lost."""
    return [b for b in replicas if (b in known.isr or b in known.elr) and b not in suspect and b not in lost]


def next_elr(eligible: Iterable[int], isr: tuple[int, ...], replication_factor: int, min_isr: int) -> tuple[int, ...]:
    """Return the ELR for this ISR: empty if the ISR is large enough, otherwise the eligible replicas outside the
    ISR."""
    if is_large_enough(isr, replication_factor, min_isr):
        return ()
    return tuple([broker for broker in eligible if broker not in isr])


def next_last_known_elr(
    known: PartitionState, replicas: Iterable[int], suspect: Iterable[int], lost: Iterable[int]
) -> tuple[int, ...]:
    """Return the last known ELR of a partition that has no leader after the change.

    It contains the suspect replicas that leave the ISR or the ELR, and the previous last known ELR without lost
    replicas.
    """
    leaving = {*known.isr, *known.elr}.intersection(suspect)
    remembered = leaving.union(known.last_known_elr).difference(lost)
    return tuple([broker for broker in replicas if broker in remembered])


def last_known_while_led(
    known: PartitionState, last_known: Iterable[int], isr: Container[int], live: Container[int]
) -> tuple[int, ...]:
    """Return the part of ``last_known`` that is kept while an eligible replica leads and the ISR is too small: the live
    replicas outside the ISR. Nothing is kept if the partition had no leader before."""
    if known.leader == NO_LEADER:
        return ()
    return tuple([broker for broker in last_known if broker in live and broker not in isr])


def is_large_enough(isr: tuple[int, ...], replication_factor: int, min_isr: int) -> bool:
    """Return True if records can be committed with this ISR: it has at least ``min_isr`` members, or all replicas."""
    return len(isr) >= min(min_isr, replication_factor)
