"""Replicas of new partitions are spread evenly, over different brokers, and over different racks and hosts if there
are enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.controller.replica_placement import ReplicaPlacement
from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID


def brokers(racks: list[str | None]) -> list[BrokerRegistration]:
    return [BrokerRegistration(i, 1, UUID(int=i), (), rack=rack) for i, rack in enumerate(racks)]


@given(count=st.integers(1, 12), partitions=st.integers(1, 60), factor=st.integers(1, 12), seed=st.integers())
def test_leaders_and_replicas_are_spread(count: int, partitions: int, factor: int, seed: int) -> None:
    factor = min(factor, count)
    placed = ReplicaPlacement(brokers([None] * count)).place(partitions, factor, Random(seed))
    assert len(placed) == partitions
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(i, 0) for i in range(count)) <= 1


@given(racks=st.lists(st.sampled_from("abcd"), min_size=1, max_size=10), factor=st.integers(1, 5), seed=st.integers())
def test_each_rack_gets_a_replica_before_any_gets_two(racks: list[str], factor: int, seed: int) -> None:
    factor = min(factor, len(racks))
    for replicas in ReplicaPlacement(brokers(list(racks))).place(20, factor, Random(seed)):
        used = {racks[broker] for broker in replicas}
        assert len(used) == min(factor, len(set(racks)))


def on_hosts(racks: Sequence[str | None], hosts: Sequence[str]) -> list[BrokerRegistration]:
    pairs = zip(brokers(list(racks)), hosts, strict=True)
    return [replace(broker, host_label=host) for broker, host in pairs]


@given(
    hosts=st.lists(st.sampled_from(["m", "n", "o", "p", ""]), min_size=1, max_size=12),
    factor=st.integers(1, 6),
    seed=st.integers(),
)
def test_replicas_are_spread_over_hosts_as_evenly_as_their_brokers_allow(
    hosts: list[str], factor: int, seed: int
) -> None:
    factor = min(factor, len(hosts))
    names = [host or str(number) for number, host in enumerate(hosts)]
    placed = ReplicaPlacement(on_hosts([None] * len(hosts), hosts)).place(40, factor, Random(seed))
    for replicas in placed:
        used = Counter(names[broker] for broker in replicas)
        assert len(set(replicas)) == factor
        assert len(used) == min(factor, len(set(names)))
        room = [count for host, count in Counter(names).items() if used[host] < count]
        assert not room or max(used.values()) <= 1 + min(used[host] for host in names if used[host] < names.count(host))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(i, 0) for i in range(len(hosts))) <= 1


@given(
    racks=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    hosts=st.lists(st.sampled_from("mn"), min_size=12, max_size=12),
    factor=st.integers(1, 5),
    seed=st.integers(),
)
def test_racks_come_before_hosts(racks: list[str], hosts: list[str], factor: int, seed: int) -> None:
    """A host is in one rack, so its full name contains the rack's."""
    factor = min(factor, len(racks))
    names = [rack + host for rack, host in zip(racks, hosts, strict=False)]
    for replicas in ReplicaPlacement(on_hosts(racks, names)).place(20, factor, Random(seed)):
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks)))
        assert len({names[broker] for broker in replicas}) == min(factor, len(set(names)))


@given(st.integers(1, 12), st.integers(1, 3), st.integers())
def test_one_host_for_all_brokers_changes_nothing(count: int, factor: int, seed: int) -> None:
    """``parley start --brokers 3`` on one machine places replicas as before."""
    factor, seeded = min(factor, count), [Random(seed), Random(seed)]
    alone, together = brokers([None] * count), on_hosts([None] * count, ["m"] * count)
    one, other = (
        ReplicaPlacement(known).place(30, factor, rng) for known, rng in zip((alone, together), seeded, strict=True)
    )
    assert one == other


def test_32_brokers_on_4_hosts_share_1000_partitions() -> None:
    """Eight brokers per host, one per core."""
    known = on_hosts([None] * 32, [f"m{number // 8}" for number in range(32)])
    placed = ReplicaPlacement(known).place(1000, 3, Random(7))
    assert all(len({broker // 8 for broker in replicas}) == 3 for replicas in placed)
    leads = Counter(replicas[0] for replicas in placed)
    holds = Counter(broker for replicas in placed for broker in replicas)
    assert set(leads.values()) <= {31, 32}
    assert 90 <= min(holds.values()) <= max(holds.values()) <= 97
    followers = {broker for replicas in placed if replicas[0] == 0 for broker in replicas[1:]}
    assert len(followers) > 16, "if broker 0 dies, many brokers share its load"


@pytest.mark.parametrize(
    ("fenced", "reason"), [(False, "larger than the number"), (True, "All brokers are currently fenced")]
)
def test_too_few_brokers(fenced: bool, reason: str) -> None:
    known = [replace(broker, fenced=fenced) for broker in brokers([None])]
    with pytest.raises(KafkaError, match=reason) as raised:
        ReplicaPlacement(known).place(1, 1 if fenced else 2, Random(0))
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_registration_without_rack_is_accepted_beside_racks() -> None:
    placed = ReplicaPlacement(brokers(["a", None, "a"])).place(10, 2, Random(uuid4().int))
    assert all(1 in replicas for replicas in placed)


@given(
    racks=st.integers(1, 4),
    per_rack=st.integers(1, 4),
    partitions=st.integers(1, 60),
    factor=st.integers(1, 6),
    seed=st.integers(),
)
def test_racks_of_equal_size_share_the_replicas_evenly(
    racks: int, per_rack: int, partitions: int, factor: int, seed: int
) -> None:
    names = [f"r{i % racks}" for i in range(racks * per_rack)]
    factor = min(factor, len(names))
    held = Counter(
        broker
        for replicas in ReplicaPlacement(brokers(list(names))).place(partitions, factor, Random(seed))
        for broker in replicas
    )
    assert max(held.values()) - min(held.get(i, 0) for i in range(len(names))) <= factor


@given(count=st.integers(1, 6), steps=st.lists(st.integers(1, 5), min_size=1, max_size=8), seed=st.integers())
def test_a_topic_that_grows_by_steps_stays_even(count: int, steps: list[int], seed: int) -> None:
    rng, placed = Random(seed), list[tuple[int, ...]]()
    for step in steps:
        first = placed[0][0] if placed else None
        placed += ReplicaPlacement(brokers([None] * count)).place(
            step, 1, rng, first_index=len(placed), first_leader=first
        )
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(i, 0) for i in range(count)) <= 1


@given(alive=st.integers(1, 4), away=st.integers(0, 4), factor=st.integers(1, 8), seed=st.integers())
def test_fenced_brokers_get_replicas_only_if_live_ones_are_too_few(
    alive: int, away: int, factor: int, seed: int
) -> None:
    factor = min(factor, alive + away)
    known = [replace(broker, fenced=broker.broker_id >= alive) for broker in brokers([None] * (alive + away))]
    for replicas in ReplicaPlacement(known).place(10, factor, Random(seed)):
        assert len(set(replicas)) == factor
        assert replicas[0] < alive
        assert sum(broker < alive for broker in replicas) == min(factor, alive)


def test_placement_needs_a_live_broker() -> None:
    with pytest.raises(KafkaError):
        ReplicaPlacement([replace(broker, fenced=True) for broker in brokers([None])]).place(1, 1, Random(0))
