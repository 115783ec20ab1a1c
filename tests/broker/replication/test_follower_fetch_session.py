"""The requests of a follower's fetch session."""

from __future__ import annotations

import pytest

from parley.broker.replication import follower_fetch_session
from parley.broker.replication.follower_fetch_session import NAMED_MAX, FollowerFetchSession, Position
from parley.protocol.codec import decode, encode
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.uuids import UUID

PARTITION = (UUID(int=1), 0)


def ask(session: FollowerFetchSession, broker_epoch: int) -> FetchRequest:
    state = FetchRequest.ReplicaState(replica_id=1, replica_epoch=broker_epoch)
    request = session.request(replica=state, max_wait_ms=0, min_bytes=1, max_bytes=1, partition_max_bytes=1)
    session.take_response(FetchResponse(session_id=7, responses=[]))
    return request


def test_a_broker_with_another_epoch_names_every_partition_again() -> None:
    session = FollowerFetchSession()
    session.ask(PARTITION, Position(0, 0, -1, 0, -1, 0))
    first = ask(session, 1)
    assert (first.session_epoch, first.stores_epochs) == (0, True)
    later = ask(session, 1)
    assert (later.session_epoch, later.topics, later.stores_epochs) == (1, [], False)
    again = ask(session, 2)
    assert (again.session_epoch, len(again.topics)) == (0, 1)
    assert ask(session, 2).session_epoch == 1


AT = Position(0, 0, -1, 0, -1, 0)


def test_a_stored_epoch_is_a_change_that_the_next_request_names() -> None:
    session = FollowerFetchSession()
    session.ask(PARTITION, AT)
    ask(session, 1)
    session.ask(PARTITION, AT._replace(stored_epoch=4))
    ((asked,),) = (topic.partitions for topic in ask(session, 1).topics)
    assert (asked.last_fetched_epoch, asked.stored_epoch) == (-1, 4)


def begin(session: FollowerFetchSession) -> FetchRequest:
    """Return the next request, without a response."""
    state = FetchRequest.ReplicaState(replica_id=1, replica_epoch=1)
    return session.request(replica=state, max_wait_ms=500, min_bytes=1, max_bytes=1, partition_max_bytes=1)


def fetched(session: FollowerFetchSession, session_id: int = 7) -> tuple[int, list[int], list[int], int]:
    """Send one request, and return its epoch, the partitions that it names and forgets, and how long it may wait."""
    request = begin(session)
    session.take_response(FetchResponse(session_id=session_id, responses=[]))
    named = [asked.partition for topic in request.topics for asked in topic.partitions]
    forgotten = [index for topic in request.forgotten_topics_data for index in topic.partitions]
    return request.session_epoch, named, forgotten, request.max_wait_ms


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> FollowerFetchSession:
    """A session of five partitions, of which a request names two."""
    monkeypatch.setattr(follower_fetch_session, "NAMED_MAX", 2)
    session = FollowerFetchSession()
    for index in range(5):
        session.ask((UUID(int=1), index), AT)
    return session


def test_many_partitions_are_named_in_several_requests_and_only_the_last_one_may_wait(
    following: FollowerFetchSession,
) -> None:
    assert [fetched(following) for _ in range(4)] == [
        (0, [0, 1], [], 0),
        (1, [2, 3], [], 0),
        (2, [4], [], 500),
        (3, [], [], 500),
    ]


def test_a_failure_names_every_partition_again(following: FollowerFetchSession) -> None:
    fetched(following)
    begin(following)
    following.restart()
    assert [fetched(following)[:2] for _ in range(3)] == [(0, [0, 1]), (1, [2, 3]), (2, [4])]


def test_without_a_session_all_partitions_are_named_in_turn(following: FollowerFetchSession) -> None:
    rounds = [fetched(following, session_id=0) for _ in range(6)]
    assert rounds == 2 * [(0, [0, 1], [], 0), (0, [2, 3], [], 0), (0, [4], [], 500)]


def test_a_partition_that_cannot_be_named_yet_is_forgotten_first(following: FollowerFetchSession) -> None:
    """Otherwise the response could contain records for the position before a truncation."""
    for _ in range(3):
        fetched(following)
    for index in (0, 1, 4):
        following.forget((UUID(int=1), index))
        following.ask((UUID(int=1), index), AT)
    assert fetched(following) == (3, [0, 1], [4], 0)
    assert fetched(following) == (4, [4], [], 500)


def test_a_leader_accepts_the_largest_request() -> None:
    session = FollowerFetchSession()
    for index in range(NAMED_MAX):
        session.ask((UUID(int=index), index), Position(1, 2, 3, 4, -1, 5))
    encoded = encode(begin(session), 18)
    assert len(decode(FetchRequest, 18, encoded).topics) == NAMED_MAX
