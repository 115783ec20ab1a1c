"""Replicas of new partitions: spread evenly, on different brokers, on different racks while there are any."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.controller.placement import place_replicas
from broker.metadata.types import BrokerRegistration
from protocol.errors import ErrorCode, KafkaError


def brokers(racks: list[str | None]) -> list[BrokerRegistration]:
    return [BrokerRegistration(i, 1, UUID(int=i), (), rack=rack) for i, rack in enumerate(racks)]


@given(count=st.integers(1, 12), partitions=st.integers(1, 60), factor=st.integers(1, 12), seed=st.integers())
def test_leaders_and_replicas_are_spread(count: int, partitions: int, factor: int, seed: int) -> None:
    factor = min(factor, count)
    placed = place_replicas(brokers([None] * count), partitions, factor, Random(seed))
    assert len(placed) == partitions
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(i, 0) for i in range(count)) <= 1


@given(racks=st.lists(st.sampled_from("abcd"), min_size=1, max_size=10), factor=st.integers(1, 5), seed=st.integers())
def test_each_rack_gets_a_replica_before_any_gets_two(racks: list[str], factor: int, seed: int) -> None:
    factor = min(factor, len(racks))
    for replicas in place_replicas(brokers(list(racks)), 20, factor, Random(seed)):
        used = {racks[broker] for broker in replicas}
        assert len(used) == min(factor, len(set(racks)))


def test_a_topic_that_grows_goes_on_where_it_stopped() -> None:
    first = [r[0] for r in place_replicas(brokers([None] * 3), 2, 1, Random(1))]
    more = [r[0] for r in place_replicas(brokers([None] * 3), 1, 1, Random(1), first_index=2)]
    assert sorted(first + more) == [0, 1, 2]


def test_too_few_brokers() -> None:
    with pytest.raises(KafkaError) as raised:
        place_replicas(brokers([None]), 1, 2, Random(0))
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_registration_without_rack_is_accepted_beside_racks() -> None:
    placed = place_replicas(brokers(["a", None, "a"]), 10, 2, Random(uuid4().int))
    assert all(1 in replicas for replicas in placed)
