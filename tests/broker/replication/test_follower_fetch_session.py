"""The requests of a follower's fetch session."""

from __future__ import annotations

from parley.broker.replication.follower_fetch_session import FollowerFetchSession, Position
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
    session.ask(PARTITION, Position(0, 0, -1, 0, 0))
    assert ask(session, 1).session_epoch == 0
    later = ask(session, 1)
    assert (later.session_epoch, later.topics) == (1, [])
    again = ask(session, 2)
    assert (again.session_epoch, len(again.topics)) == (0, 1)
    assert ask(session, 2).session_epoch == 1
