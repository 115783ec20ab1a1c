"""All brokers are killed, and return in any order: the alarm of a possible loss is raised if and only if it must be.

The controller knows that a broker is dead only when it fences it or when another process of it registers. Until then it
believes that the dead broker is in the ISR, perhaps as the leader. So what it knows depends on the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum, auto
from itertools import permutations, product

import pytest

from parley.broker.controller.broker_reports import MISSING, BrokerReport, ReplicaReport
from parley.broker.controller.brokers import fence_broker, register_broker
from parley.broker.controller.elections.unclean_leader_choice import Recovery, recover_leaders
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, PartitionState
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import TOPIC, TOPIC_ID, epoch_of, image_with, min_isr_2

BROKERS = (1, 2, 3)
SYNCED, BEFORE, AFTER = 8, 10, 12
"""The log ends of synced disks, and before and after the first broker left the ISR: the other two may have committed
records without it."""


class Fate(Enum):
    """What happened to a broker's disk."""

    STOPPED = auto()
    """The broker had stopped cleanly."""
    KILLED = auto()
    """The log may lack records, but lacks none."""
    POWERLESS = auto()
    """The machine lost power, and the log lacks what was not synced."""
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
    log = MISSING if fate is Fate.EMPTIED else ReplicaReport(4, log_end, SYNCED, directory=disk)
    if fate is Fate.POWERLESS:
        log = replace(log, log_end_offset=SYNCED, may_be_cut_by_power=True)
    return registration, BrokerReport(incarnation, {(TOPIC_ID, 0): log})


def outcome(order: Order, fates: Mapping[int, Fate], ends: Mapping[int, int]) -> tuple[int, bool, bool]:
    """Return the leader at the end, and whether the alarms of a possible loss and of a power cut were raised."""
    image = cluster()
    reports: dict[int, BrokerReport | None] = {}
    recoveries: list[Recovery] = []
    for event, broker in order:
        if event is Event.FENCED:
            image = image.with_changes(fence_broker(image, broker, min_isr_2).changes)
            continue
        registration, report = returned(broker, fates[broker], ends[broker])
        reports[broker] = report
        image = image.with_changes(register_broker(image, registration, report, min_isr_2).changes)
        decision = recover_leaders(image, [(TOPIC, 0)], reports, min_isr_2)
        image = image.with_changes(decision.changes)
        recoveries += decision.result
    state = image.partition(TOPIC, 0)
    assert state is not None
    choices = [each.choice for each in recoveries]
    return state.leader, any(each.is_unclean for each in choices), any(each.is_after_power_cut for each in choices)


@pytest.mark.parametrize(
    "fenced",
    [
        (),
        *((broker,) for broker in BROKERS),
        *(pytest.param(each, marks=pytest.mark.soak) for each in ((1, 2), (1, 3), (2, 3), BROKERS)),
    ],
)
def test_the_alarm_is_raised_if_and_only_if_the_last_that_could_commit_are_damaged(fenced: tuple[int, ...]) -> None:
    """The first broker that leaves the ISR proves nothing: the other two may have committed records without it."""
    for order in orders(fenced):
        first, *last = dict.fromkeys(broker for _, broker in order)
        ends = {first: BEFORE, **dict.fromkeys(last, AFTER)}
        for chosen in product(Fate, repeat=len(BROKERS)):
            fates = dict(zip(BROKERS, chosen, strict=True))
            leader, is_unclean, is_after_power_cut = outcome(order, fates, ends)
            left = [fates[broker] for broker in last]
            is_any_whole = Fate.KILLED in left or Fate.STOPPED in left
            is_all_powerless = left == [Fate.POWERLESS] * 2
            assert leader != NO_LEADER, (order, fates)
            assert is_unclean == (not is_any_whole and not is_all_powerless), (order, fates)
            assert is_after_power_cut == is_all_powerless, (order, fates)
            assert not is_any_whole or fates[leader] in (Fate.KILLED, Fate.STOPPED), (order, fates)
            assert not is_any_whole or leader in last, (order, fates)
