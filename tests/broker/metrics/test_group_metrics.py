"""The metrics of single groups, computed from the state of the coordinator and the hosted replicas, and bounded."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from parley import Broker
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset, CommittedOffsets
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.member import Member
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.share.share_group import ShareGroup, ShareMember
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.coordinators.share_state.stored_state import StoredState
from parley.broker.metrics.catalogue.coordinators import GroupLagMetrics, ShareGroupStateMetrics
from parley.broker.metrics.group_metrics import group_lags, group_members, known_end, share_group_lags
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.share_groups import ShareGroupHeartbeatRequest
from parley.protocol.uuids import UUID
from tests.broker.coordinators.groups.test_coordinator import Groups


def group(name: str, offsets: dict[tuple[str, int], int]) -> Group:
    committed = {key: CommittedOffset(offset, -1, "", 0) for key, offset in offsets.items()}
    return Group(name, 0, offsets=CommittedOffsets(committed))


def test_the_lag_is_left_out_if_the_end_is_unknown() -> None:
    known = {("t", 0): 10, ("t", 1): 3}
    found: Any = group_lags([group("g", {("t", 0): 4, ("t", 1): 5, ("u", 0): 7})], lambda *key: known.get(key), 10)
    assert {labels: (numbers.offset, numbers.lag) for labels, numbers in found} == {
        ("g", "t", "0"): (4, 6),
        ("g", "t", "1"): (5, 0),  # a follower does not know the newest end
        ("g", "u", "0"): (7, None),
    }


def test_the_lag_of_a_share_group_excludes_completed_records() -> None:
    topic = UUID(int=1)
    state = StoredState(0, 0, 0, start_offset=4, delivery_complete_count=2, created_ms=0, written_ms=0)
    states = {
        SharePartitionKey("g", topic, 0): state,
        SharePartitionKey("g", topic, 1): replace(state, delivery_complete_count=-1),  # as an older broker writes it
        SharePartitionKey("g", topic, 2): replace(state, start_offset=-1),
        SharePartitionKey("g", UUID(int=2), 0): state,  # of a topic that was deleted
    }
    runtime: Any = SimpleNamespace(states=lambda: [(0, SimpleNamespace(states=states))])
    found: Any = share_group_lags(runtime, {topic: "t"}, lambda *key: 10, 10)
    assert {labels: (numbers.offset, numbers.lag) for labels, numbers in found} == {
        ("g", "t", "0"): (4, 4),
        ("g", "t", "1"): (4, None),
    }
    assert len(list(share_group_lags(runtime, {topic: "t"}, lambda *key: 10, 1))) == 1


def test_not_more_than_the_most_are_exported() -> None:
    groups = [group(f"g{n}", {("t", 0): n, ("t", 1): n}) for n in range(10)]
    assert len(list(group_lags(groups, lambda *key: 100, 5))) == 5
    assert list(group_lags(groups, lambda *key: 100, 0)) == []
    for each in groups:
        each.consumer = ConsumerGroup(each.group_id, epoch=7, members={"m": Member("m")})
    found: Any = group_members(groups, 3)
    assert [(labels, numbers.members, numbers.epoch) for labels, numbers in found] == [
        ((f"g{n}", "consumer"), 1, 7) for n in range(3)
    ]
    of_share_group = group("s", {})
    of_share_group.share = ShareGroup("s", epoch=3, members={"m": ShareMember("m")})
    found = group_members([of_share_group], 3)
    assert [(labels, numbers.members, numbers.epoch) for labels, numbers in found] == [(("s", "share"), 1, 3)]


def test_groups_without_members_have_no_members() -> None:
    assert list(group_members([group("g", {("t", 0): 1})], 10)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 8),
        ({"is_open": False}, None),
        ({"state": SimpleNamespace(isr=(2, 3))}, None),
        ({"knows_high_watermark": False}, None),
        ({"is_leader": False, "knows_high_watermark": False}, 8),
    ],
)
def test_the_end_is_known_of_replicas_in_sync(changes: dict[str, Any], expected: int | None) -> None:
    sound = {"is_open": True, "is_leader": True, "knows_high_watermark": True, "high_watermark": 8}
    replica: Any = SimpleNamespace(**{**sound, "state": SimpleNamespace(isr=(1, 2)), **changes})
    assert known_end({"t": {0: replica}}, 1, "t", 0) == expected
    assert known_end({"t": {0: replica}}, 1, "t", 1) is None
    assert known_end({}, 1, "t", 0) is None


async def test_a_broker_exports_the_lag_of_its_groups() -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        groups = Groups(broker, client)
        await groups.create("t")
        await groups.find_coordinator()
        assert await groups.commit(0) is ErrorCode.NONE
        (sample,) = dict(broker.server.environment.metrics.snapshot())[GroupLagMetrics]
        lag, offset = sample.values
        assert (sample.labels, lag, offset) == (("g", "t", "0"), 0, 0)


async def test_a_broker_exports_its_share_groups_by_state() -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        groups = Groups(broker, client)
        await groups.create("t")
        await groups.find_coordinator()
        await broker.server.parts.groups.runtime.until_loaded(60)
        join = ShareGroupHeartbeatRequest(
            group_id="s", member_id="m" * 22, member_epoch=0, subscribed_topic_names=["t"]
        )
        joined = await client.send(join, version=1)
        assert joined.error_code == ErrorCode.NONE
        samples = dict(broker.server.environment.metrics.snapshot())[ShareGroupStateMetrics]
        assert {sample.labels: sample.values for sample in samples} == {
            ("Empty",): (0,),
            ("Stable",): (1,),
            ("Dead",): (0,),
        }
