"""When committed offsets expire: to the millisecond, in each state of a group."""

from __future__ import annotations

import asyncio

import pytest

from parley.broker.coordinators.groups.classic.membership import GroupMember, GroupState, Membership
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset, CommittedOffsets
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.offset_expiry import expired_offsets, subscribes_to
from parley.protocol.codec import encode_stored
from parley.protocol.messages.stored import ConsumerProtocolSubscription
from tests.broker.coordinators.groups.grouped import NOT_A_MEMBER, Coordinated
from tests.broker.coordinators.shards import now_ms
from tests.support.virtual_time import run

RETENTION_MS = 1000
COMMITTED_MS = 50_000


def committed() -> CommittedOffset:
    return CommittedOffset(5, -1, "", COMMITTED_MS)


def group(
    state: GroupState, protocol_type: str | None = None, *, since_ms: int = -1, expire_at_ms: int | None = None
) -> Group:
    offset = committed() if expire_at_ms is None else committed()._replace(expire_at_ms=expire_at_ms)
    offsets = CommittedOffsets({("t", 0): offset})
    membership = Membership(state, since_ms, protocol_type=protocol_type, protocol="range")
    return Group("g", 0, membership, offsets)


def expires_at(group: Group, *, retention_ms: int = RETENTION_MS) -> int | None:
    """Return the first moment at which the group's only offset has expired; None if it never does."""
    if not expired_offsets(group, 1 << 62, retention_ms):
        return None
    early, late = 0, 1 << 62
    while early < late:
        middle = (early + late) // 2
        early, late = (early, middle) if expired_offsets(group, middle, retention_ms) else (middle + 1, late)
    return early


def subscribed(*topics: str) -> bytes:
    return encode_stored(ConsumerProtocolSubscription(topics=list(topics)), 0)


def member(metadata: bytes) -> GroupMember:
    return GroupMember("m", None, "c", "h", 1, 1, (("range", metadata),))


def test_without_a_protocol_the_time_of_the_commit_counts() -> None:
    never_had_members = group(GroupState.EMPTY, since_ms=COMMITTED_MS + 500)
    assert expires_at(never_had_members) == COMMITTED_MS + RETENTION_MS


def test_after_the_last_member_the_later_of_leaving_and_commit_counts() -> None:
    left_later = group(GroupState.EMPTY, "consumer", since_ms=COMMITTED_MS + 500)
    assert expires_at(left_later) == COMMITTED_MS + 500 + RETENTION_MS
    left_before = group(GroupState.EMPTY, "consumer", since_ms=COMMITTED_MS - 500)
    assert expires_at(left_before) == COMMITTED_MS + RETENTION_MS
    assert expires_at(group(GroupState.EMPTY, "consumer")) == COMMITTED_MS + RETENTION_MS, "the time is unknown"


@pytest.mark.parametrize("protocol_type", [None, "consumer"])
def test_the_retention_that_an_old_client_gave_counts_instead(protocol_type: str | None) -> None:
    for expire_at_ms in (0, COMMITTED_MS + 1, COMMITTED_MS + 10 * RETENTION_MS):
        assert expires_at(group(GroupState.EMPTY, protocol_type, expire_at_ms=expire_at_ms)) == expire_at_ms


def test_topics_that_members_read_never_expire_and_others_after_the_commit() -> None:
    reading = group(GroupState.STABLE, "consumer", since_ms=COMMITTED_MS + 500)
    reading.membership.add(member(subscribed("t", "u")))
    assert expires_at(reading) is None
    assert [subscribes_to(reading, topic) for topic in ("t", "u", "v")] == [True, True, False]
    reading.membership.add(member(subscribed("u")))
    assert expires_at(reading) == COMMITTED_MS + RETENTION_MS


@pytest.mark.parametrize(
    ("state", "protocol_type", "metadata"),
    [
        (GroupState.PREPARING_REBALANCE, "consumer", subscribed("u")),
        (GroupState.COMPLETING_REBALANCE, "consumer", subscribed("u")),
        (GroupState.STABLE, "connect", subscribed("u")),
        (GroupState.STABLE, "consumer", b"\x00"),
    ],
)
def test_nothing_expires_while_the_subscriptions_are_unknown(
    state: GroupState, protocol_type: str, metadata: bytes
) -> None:
    reading = group(state, protocol_type)
    reading.membership.add(member(metadata))
    assert expires_at(reading) is None
    assert subscribes_to(reading, "any")


def test_offsets_expire_in_each_round_and_in_the_end_the_group() -> None:
    async def scenario() -> None:
        bench = Coordinated(
            properties={"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "60000"}
        )
        await bench.begin()
        began_ms = now_ms()
        for topic, after_ms in (("t", 0), ("u", 60_001)):
            await bench.groups.commit(
                NOT_A_MEMBER, {(topic, 0): committed()._replace(commit_timestamp_ms=began_ms + after_ms)}
            )
        expiring = asyncio.ensure_future(bench.groups.expire())
        left = []
        for _ in range(3):
            await asyncio.sleep(60.001)
            left.append([topic for topic, _ in bench.offsets()])
        assert left == [["u"], ["u"], []]
        assert bench.groups.find("g") is None
        metrics = bench.groups.metrics()
        assert (metrics.offsets, metrics.commits, metrics.expired) == (0, 2, 2)
        expiring.cancel()

    run(scenario())


def test_an_offset_does_not_expire_while_a_transaction_commits_another() -> None:
    committing = group(GroupState.EMPTY)
    committing.add_pending_offset(7, ("t", 0), committed())
    assert expires_at(committing) is None


def test_a_group_without_members_subscribes_to_nothing() -> None:
    assert not subscribes_to(group(GroupState.EMPTY, "consumer"), "t")
