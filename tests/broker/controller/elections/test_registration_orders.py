"""All brokers are killed, and return in any order: the alarm of a possible loss is raised if and only if it must be.

The controller knows that a broker is dead only when it fences it or when another process of it registers. Until then it
takes the dead broker for a member of the ISR, perhaps for the leader. So what it knows depends on the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum, auto
from itertools import permutations, product

import pytest

from parley.broker.controller.broker_reports import MISSING, BrokerReport, ReplicaReport
from parley.broker.controller.brokers import fence_broker, register_broker
from parley.broker.controller.elections.unclean_leader_choice import recover_leaders
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, PartitionState
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import TOPIC, TOPIC_ID, epoch_of, image_with, min_isr_2

BROKERS = (1, 2, 3)
BEFORE, AFTER = 10, 12
"""The log ends before and after the first broker left the ISR: the other two may have committed records without it."""


class Fate(Enum):
    """What happened to a broker's disk."""

    STOPPED = auto()
    """The broker had stopped cleanly."""
    KILLED = auto()
    """The log may lack records, but lacks none."""
    EMPTIED = auto()


class Event(Enum):
    """How the controller learns that a process has ended."""

    FENCED = auto()
    REGISTERED = auto()


Order = tuple[tuple[Event, int], ...]


def orders(fenced: tuple[int, ...]) -> Iterator[Order]:
    """Yield the orders in which all brokers register, and these are fenced before that."""
    events = [(Event.REGISTERED, broker) for broker in BROKERS] + [(Event.FENCED, broker) for broker in fenced]
    for order in permutations(events):
        if all(order.index((Event.FENCED, broker)) < order.index((Event.REGISTERED, broker)) for broker in fenced):
            yield order


def cluster() -> MetadataImage:
    image = image_with(PartitionState(BROKERS, BROKERS, 1, 5, 7), brokers=3)
    disks = {b: replace(each, log_dirs=(UUID(int=100 + b),)) for b, each in image.brokers.items()}
    return replace(image, brokers=disks)


def returned(broker: int, fate: Fate, log_end: int) -> tuple[BrokerRegistration, BrokerReport]:
    """Return a broker's registration and report after its restart."""
    disk = UUID(int=(200 if fate is Fate.EMPTIED else 100) + broker)
    previous = epoch_of(broker) if fate is Fate.STOPPED else -1
    incarnation = UUID(int=300 + broker)
    registration = BrokerRegistration(broker, 20 + broker, incarnation, (), previous_epoch=previous, log_dirs=(disk,))
    log = MISSING if fate is Fate.EMPTIED else ReplicaReport(4, log_end, BEFORE, directory=disk)
    return registration, BrokerReport(incarnation, {(TOPIC_ID, 0): log})


def outcome(order: Order, fates: Mapping[int, Fate], ends: Mapping[int, int]) -> tuple[int, bool]:
    """Return the leader at the end, and whether the alarm was raised."""
    image, reports, is_unclean = cluster(), {}, False
    for event, broker in order:
        if event is Event.FENCED:
            image = image.with_changes(fence_broker(image, broker, min_isr_2).changes)
            continue
        registration, report = returned(broker, fates[broker], ends[broker])
        reports[broker] = report
        image = image.with_changes(register_broker(image, registration, report, min_isr_2).changes)
        decision = recover_leaders(image, [(TOPIC, 0)], reports, min_isr_2)
        image = image.with_changes(decision.changes)
        is_unclean = is_unclean or any(each.choice.is_unclean for each in decision.result)
    state = image.partition(TOPIC, 0)
    assert state is not None
    return state.leader, is_unclean


@pytest.mark.parametrize("fenced", [(), *((b,) for b in BROKERS), (1, 2), (1, 3), (2, 3), BROKERS])
def test_the_alarm_is_raised_if_and_only_if_all_that_could_commit_last_are_emptied(fenced: tuple[int, ...]) -> None:
    for order in orders(fenced):
        first, *last = dict.fromkeys(broker for _, broker in order)
        ends = {first: BEFORE, **dict.fromkeys(last, AFTER)}
        for chosen in product(Fate, repeat=len(BROKERS)):
            fates = dict(zip(BROKERS, chosen, strict=True))
            leader, is_unclean = outcome(order, fates, ends)
            whole = [broker for broker in last if fates[broker] is not Fate.EMPTIED]
            assert leader != NO_LEADER, (order, fates)
            assert is_unclean == (not whole), (order, fates)
            assert leader in whole or not whole, (order, fates)
