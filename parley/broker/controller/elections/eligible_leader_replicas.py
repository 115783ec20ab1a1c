"""Eligible leader replicas (ELR, KIP-966): replicas outside the ISR that contain all committed records.

A leader does not advance the high watermark while the ISR is smaller than ``min.insync.replicas``. So every replica
that leaves the ISR during that time contains all committed records: it joins the ELR. The ELR is cleared when the ISR
is large enough again. A ``suspect`` replica may have lost records, a ``lost`` replica certainly has: neither is
eligible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from parley.broker.metadata.types import PartitionState


def eligible_replicas(
    known: PartitionState, replicas: Iterable[int], suspect: Collection[int], lost: Collection[int]
) -> list[int]:
    """Return the replicas of the ISR and ELR of ``known`` that still contain all committed records."""
    return [b for b in replicas if (b in known.isr or b in known.elr) and b not in suspect and b not in lost]


def next_elr(eligible: Iterable[int], isr: tuple[int, ...], replication_factor: int, min_isr: int) -> tuple[int, ...]:
    """Return the ELR that goes with this ISR: empty if the ISR is large enough, otherwise the eligible replicas outside
    it."""
    if len(isr) >= min(min_isr, replication_factor):
        return ()
    return tuple([broker for broker in eligible if broker not in isr])


def next_last_known_elr(
    known: PartitionState, replicas: Iterable[int], suspect: Iterable[int], lost: Iterable[int]
) -> tuple[int, ...]:
    """Return the replicas that left the ISR and ELR while the partition had no leader, and may contain all records."""
    leaving = {*known.isr, *known.elr}.intersection(suspect)
    remembered = leaving.union(known.last_known_elr).difference(lost)
    return tuple([broker for broker in replicas if broker in remembered])
