"""The assignor of share groups: how partitions are distributed."""

from __future__ import annotations

from parley.broker.coordinators.groups.share.simple_assignor import assign
from parley.protocol.uuids import UUID

A, B = UUID(int=1), UUID(int=2)
ONE = frozenset({0})


def test_topics_of_members_that_subscribe_to_the_same_are_shared_out_together() -> None:
    subscriptions = dict.fromkeys(("m", "n"), frozenset({A, B}))
    assert assign(subscriptions, {A: [0], B: [0]}, {}) == {"m": {A: ONE}, "n": {B: ONE}}


def test_each_topic_goes_to_the_members_that_subscribe_to_it() -> None:
    subscriptions = {"m": frozenset({A}), "n": frozenset({A, B})}
    assert assign(subscriptions, {A: [0], B: [0]}, {}) == {"m": {A: ONE}, "n": {A: ONE, B: ONE}}


def test_a_member_gives_up_what_it_has_above_its_share() -> None:
    before = {"m": {A: frozenset(range(4))}}
    assigned = assign(dict.fromkeys(("m", "n"), frozenset({A})), {A: range(4)}, before)
    assert assigned == {"m": {A: frozenset({0, 1})}, "n": {A: frozenset({2, 3})}}
