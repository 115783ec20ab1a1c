"""A fetch session belongs to the principal that began it."""

from __future__ import annotations

import random

import pytest

from parley.broker.api.fetch.sessions import FetchSessions
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.security.principal import user
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest

ALICE, MALLORY = user("alice"), user("mallory")


def request(session_id: int, epoch: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[],
        forgotten_topics_data=[],
    )


@pytest.mark.parametrize("epoch", [0, -1, 1, 2])
def test_another_principal_neither_continues_nor_ends_a_session(epoch: int) -> None:
    sessions = FetchSessions(10, random.Random(1), lambda: 0.0)
    session_id = sessions.create([], Purgatory(), is_follower=False, uses_ids=False, owner=ALICE)
    if epoch > 0:
        with pytest.raises(KafkaError) as refused:
            sessions.resume(request(session_id, epoch), uses_ids=False, owner=MALLORY)
        assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    else:
        assert sessions.resume(request(session_id, epoch), uses_ids=False, owner=MALLORY) is None
    found = sessions.resume(request(session_id, 1), uses_ids=False, owner=ALICE)
    assert found is not None
    assert found.id == session_id
