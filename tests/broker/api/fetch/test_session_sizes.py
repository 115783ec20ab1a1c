"""Clients choose how many partitions their sessions remember, existing or not. So all sessions together are bounded."""

from __future__ import annotations

import random

import pytest

from parley.broker.api.fetch import sessions as module
from parley.broker.api.fetch.sessions import EVICTION_S, NO_SESSION, FetchSessions, targets_of
from parley.broker.metadata.topic_names import NAME_LENGTH_MAX
from parley.broker.runtime.purgatory import Purgatory
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.schema import ZERO_UUID
from parley.protocol.uuids import UUID

PARTITIONS_MAX = 100


def request(
    *indexes: int, topic: str = "t", topic_id: UUID = ZERO_UUID, session_id: int = 0, epoch: int = 0, forget: int = 0
) -> FetchRequest:
    """Fetch these partitions; ``forget`` is how many the request forgets, from 0 on."""
    asked = [FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1) for index in indexes]
    forgotten = FetchRequest.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(range(forget)))
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=asked)],
        forgotten_topics_data=[forgotten],
    )


class Sized:
    """The sessions of a broker, whose clock the test sets."""

    def __init__(self, slots: int = 1000) -> None:
        self.now_s = 0.0
        self.sessions = FetchSessions(slots, random.Random(1), lambda: self.now_s)

    def begin(self, size: int, *, topic: str = "t", is_follower: bool = False) -> int:
        targets = targets_of(request(*range(size), topic=topic))
        return self.sessions.create(targets, Purgatory(), is_follower=is_follower, uses_ids=False)

    def go_on(self, session_id: int, *indexes: int, epoch: int = 1, topic: str = "t", forget: int = 0) -> None:
        asked = request(*indexes, topic=topic, session_id=session_id, epoch=epoch, forget=forget)
        assert self.sessions.resume(asked, uses_ids=False) is not None

    def is_lost(self, session_id: int, *indexes: int, epoch: int = 1, topic: str = "t") -> bool:
        try:
            self.go_on(session_id, *indexes, epoch=epoch, topic=topic)
        except KafkaError as error:
            return error.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return False


@pytest.fixture
def sized(monkeypatch: pytest.MonkeyPatch) -> Sized:
    monkeypatch.setattr(module, "CONSUMED_PARTITIONS_MAX", PARTITIONS_MAX)
    return Sized()


def test_a_session_that_does_not_fit_is_not_begun_and_ends_none(sized: Sized) -> None:
    first, second = sized.begin(60), sized.begin(40)
    assert NO_SESSION not in (first, second)
    assert sized.begin(1) == NO_SESSION
    assert sized.sessions.partitions == PARTITIONS_MAX
    sized.go_on(first)
    sized.go_on(second)


def test_a_larger_session_takes_no_slot_if_it_does_not_fit(sized: Sized) -> None:
    full = Sized(slots=2)
    small, large = full.begin(10), full.begin(60)
    assert full.begin(31) == NO_SESSION
    full.go_on(small)
    full.go_on(large)
    assert full.begin(30) != NO_SESSION
    assert full.is_lost(small, epoch=2)
    assert full.sessions.evictions == 1


def test_idle_sessions_give_way_oldest_first_and_no_more_than_needed(sized: Sized) -> None:
    oldest, older, old = sized.begin(30), sized.begin(30), sized.begin(30)
    sized.now_s = EVICTION_S
    assert sized.begin(20) == NO_SESSION
    sized.now_s += 1
    assert sized.begin(60) != NO_SESSION
    assert sized.sessions.evictions == 2
    assert sized.is_lost(oldest)
    assert sized.is_lost(older)
    sized.go_on(old)


def test_a_session_that_grows_too_large_ends_alone(sized: Sized) -> None:
    growing, other = sized.begin(50), sized.begin(49)
    sized.go_on(growing, 50)
    assert sized.is_lost(growing, 51, epoch=2)
    assert sized.is_lost(growing, epoch=2), "it has ended"
    assert sized.sessions.partitions == 49
    sized.go_on(other)
    assert sized.begin(51) != NO_SESSION


def test_a_full_session_may_change_and_exchange_partitions(sized: Sized) -> None:
    session = sized.begin(PARTITIONS_MAX)
    sized.go_on(session, 5, 6)
    sized.go_on(session, 100, 101, epoch=2, forget=2)
    assert sized.sessions.partitions == PARTITIONS_MAX


def test_a_session_that_grows_takes_the_room_of_idle_ones(sized: Sized) -> None:
    idle, growing = sized.begin(50), sized.begin(50)
    sized.now_s = EVICTION_S + 1
    sized.go_on(growing, 50)
    assert sized.is_lost(idle)
    assert sized.sessions.partitions == 51


def test_followers_have_a_bound_of_their_own(sized: Sized, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an authorizer a client can pose as a follower."""
    monkeypatch.setattr(module, "FOLLOWED_PARTITIONS_MAX", PARTITIONS_MAX)
    follower, consumer = sized.begin(PARTITIONS_MAX, is_follower=True), sized.begin(PARTITIONS_MAX)
    assert sized.begin(1, is_follower=True) == NO_SESSION
    sized.go_on(follower)
    sized.go_on(consumer)
    sized.now_s = EVICTION_S + 1
    assert sized.begin(1, is_follower=True) != NO_SESSION
    assert sized.is_lost(follower, epoch=2)
    sized.go_on(consumer, epoch=2)


def test_followers_neither_count_nor_give_way(sized: Sized) -> None:
    follower = sized.begin(2 * PARTITIONS_MAX, is_follower=True)
    sized.now_s = EVICTION_S + 1
    assert sized.begin(PARTITIONS_MAX) != NO_SESSION
    assert sized.begin(1) == NO_SESSION
    sized.go_on(follower, 2 * PARTITIONS_MAX)
    assert sized.begin(1, is_follower=True) != NO_SESSION


def test_a_follower_may_have_more_partitions_than_a_request_or_a_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTITIONS_MAX", 2)
    sized = Sized()
    follower, consumer = sized.begin(2, is_follower=True), sized.begin(2)
    sized.go_on(follower, 2, 3)
    with pytest.raises(KafkaError):
        sized.go_on(consumer, 2)
    with pytest.raises(KafkaError):
        sized.go_on(follower, 4, 5, 6, epoch=2)


def test_no_session_remembers_a_name_that_no_topic_can_have() -> None:
    sized = Sized()
    longest, too_long = "t" * NAME_LENGTH_MAX, "t" * (NAME_LENGTH_MAX + 1)
    assert sized.begin(1, topic=too_long) == NO_SESSION
    session = sized.begin(1, topic=longest)
    assert session != NO_SESSION
    sized.go_on(session, 1, topic=longest)
    assert sized.is_lost(session, 0, epoch=2, topic=too_long)
    assert sized.sessions.sessions == 0
