"""The built-in assignors: every partition once, evenly, and with few moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.broker.config import ConfigError
from parley.broker.coordinators.groups.consumer.assignors.assignor import (
    Assignment,
    GroupSpec,
    MemberSpec,
    PartitionAssignor,
    TopicSpec,
)
from parley.broker.coordinators.groups.consumer.assignors.range import RangeAssignor
from parley.broker.coordinators.groups.consumer.assignors.registry import load_assignors
from parley.broker.coordinators.groups.consumer.assignors.uniform import UniformAssignor
from parley.broker.coordinators.groups.consumer.target_assignment import assign
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from tests.support.proportion import examples

UNIFORM, RANGE = UniformAssignor(), RangeAssignor()
IDS = [UUID(int=number + 1) for number in range(4)]


def spec(
    topics: list[int], members: Mapping[str, tuple[int, ...]], before: Mapping[str, Assignment] | None = None
) -> GroupSpec:
    """Return a group: ``topics`` has their numbers of partitions, ``members`` the topics that each subscribes to."""
    wanted = set().union(*members.values())
    known = {
        IDS[n]: TopicSpec(f"t{n}", count, lambda partition: frozenset())
        for n, count in enumerate(topics)
        if n in wanted
    }
    return GroupSpec(
        {
            name: MemberSpec(None, None, frozenset(IDS[n] for n in subscribed), (before or {}).get(name, {}))
            for name, subscribed in sorted(members.items())
        },
        known,
    )


groups = st.builds(
    spec,
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.dictionaries(
        st.sampled_from("abcdefg"),
        st.sets(st.integers(0, 3), min_size=1).map(lambda each: tuple(sorted(each))),
        min_size=1,
    ),
)
alike = st.builds(
    lambda topics, names: spec(topics, dict.fromkeys(names, tuple(range(len(topics))))),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sets(st.sampled_from("abcdefg"), min_size=1),
)


def counts(decided: Mapping[str, Assignment]) -> dict[str, int]:
    return {name: sum(map(len, target.values())) for name, target in decided.items()}


def again(group: GroupSpec, decided: Mapping[str, Assignment], *, without: str = "", new: str = "") -> GroupSpec:
    """Return the group with what was decided, perhaps with one member less or more."""
    first = next(iter(group.members.values()))
    members = {name: each._replace(assigned=decided[name]) for name, each in group.members.items() if name != without}
    if new:
        members[new] = first._replace(assigned={})
    return GroupSpec(dict(sorted(members.items())), group.topics)


def moved(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> int:
    """How many partitions a member has now that it did not have before."""
    return sum(
        len(set(partitions) - set(before.get(name, {}).get(topic, ())))
        for name, target in after.items()
        for topic, partitions in target.items()
    )


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE], ids=lambda each: each.name)
@settings(max_examples=examples(200), deadline=None)
@given(group=st.one_of(groups, alike))
def test_every_partition_with_a_subscriber_is_assigned_once(assignor: PartitionAssignor, group: GroupSpec) -> None:
    decided = assign(assignor, group)  # raises if a partition is assigned twice, or to a member that does not subscribe
    wanted = {topic for member in group.members.values() for topic in member.topics}
    assert sum(counts(decided).values()) == sum(group.topics[topic].partitions for topic in wanted)


@settings(max_examples=examples(200), deadline=None)
@given(group=alike)
def test_members_with_the_same_topics_have_equal_shares_and_keep_them(group: GroupSpec) -> None:
    decided = assign(UNIFORM, group)
    shares = counts(decided).values()
    assert max(shares) - min(shares) <= 1
    assert assign(UNIFORM, again(group, decided)) == decided
    joined = assign(UNIFORM, again(group, decided, new="z"))
    assert moved(decided, joined) == counts(joined)["z"]  # only what the new member gets
    shares = counts(joined).values()
    assert max(shares) - min(shares) <= 1
    gone = next(iter(group.members))
    if len(group.members) > 1:
        left = assign(UNIFORM, again(group, decided, without=gone))
        assert moved(decided, left) == counts(decided)[gone]


@settings(max_examples=examples(200), deadline=None)
@given(group=groups)
def test_a_partition_stays_unless_another_subscriber_has_two_less(group: GroupSpec) -> None:
    decided = assign(UNIFORM, group)
    have = counts(decided)
    for name, target in decided.items():
        for topic in target:
            fewest = min(have[other] for other, each in group.members.items() if topic in each.topics)
            assert have[name] - fewest <= 1
    assert assign(UNIFORM, again(group, decided)) == decided


@settings(max_examples=examples(100), deadline=None)
@given(group=alike)
def test_ranges_of_all_topics_go_to_the_members_in_the_same_order(group: GroupSpec) -> None:
    decided = assign(RANGE, group)
    for topic, each in group.topics.items():
        in_order = [partition for name in sorted(group.members) for partition in decided[name].get(topic, ())]
        assert in_order == list(range(each.partitions))


def test_static_members_come_first_in_ranges() -> None:
    group = spec([3], {"a": (0,), "b": (0,), "c": (0,)})
    members = {**group.members, "c": group.members["c"]._replace(instance_id="i")}
    assert RANGE.assign(GroupSpec(members, group.topics)) == {
        "c": {IDS[0]: (0,)},
        "a": {IDS[0]: (1,)},
        "b": {IDS[0]: (2,)},
    }


class Everything(PartitionAssignor):
    """Gives every member every partition."""

    name: ClassVar[str] = "everything"

    def assign(self, group: GroupSpec) -> Mapping[str, Assignment]:
        return {
            name: {topic: tuple(range(each.partitions)) for topic, each in group.topics.items()}
            for name in group.members
        }


class Failing(PartitionAssignor):
    """Raises."""

    name: ClassVar[str] = "failing"

    def assign(self, group: GroupSpec) -> Mapping[str, Assignment]:
        raise ZeroDivisionError


@pytest.mark.parametrize("assignor", [Everything(), Failing()], ids=lambda each: each.name)
def test_an_assignor_that_breaks_the_rules_fails_the_assignment(assignor: PartitionAssignor) -> None:
    with pytest.raises(KafkaError) as raised:
        assign(assignor, spec([2], {"a": (0,), "b": (0,)}))
    assert raised.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_assignors_are_loaded_by_their_names() -> None:
    own = f"{__name__}.Everything"
    assert list(load_assignors(["range", own, "uniform"])) == ["range", "everything", "uniform"]
    for wrong in (["unknown"], ["uniform", "uniform"], [], ["uuid.UUID"], ["no.such.Module"]):
        with pytest.raises(ConfigError):
            load_assignors(wrong)


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE], ids=lambda each: each.name)
@given(group=groups, racks=st.lists(st.sampled_from("xyz"), min_size=7, max_size=7))
@settings(max_examples=examples(50), deadline=None)
def test_racks_change_no_assignment(assignor: PartitionAssignor, group: GroupSpec, racks: list[str]) -> None:
    """As in Apache Kafka 4.3.1, whose ``uniform`` and ``range`` do not look at racks."""
    members = {
        name: member._replace(rack_id=rack) for (name, member), rack in zip(group.members.items(), racks, strict=False)
    }
    topics = {
        topic: each._replace(racks=lambda partition: frozenset({racks[partition % len(racks)]}))
        for topic, each in group.topics.items()
    }
    assert assignor.assign(GroupSpec(members, topics)) == assignor.assign(group)
