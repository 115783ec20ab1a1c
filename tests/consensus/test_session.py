from __future__ import annotations

import asyncio

import pytest

from parley.consensus.errors import IllegalStep, SessionLost
from parley.consensus.session import STEPS, Session, SessionEvent, SessionState
from tests.support.virtual_time import run


class PlainSession(Session):
    async def close(self) -> None:
        self.lose()


def opened(ttl_ms: int, sent_ago_s: float = 0.0) -> PlainSession:
    return PlainSession("s", ttl_ms, asyncio.get_running_loop().time() - sent_ago_s)


def test_without_renewal_it_is_suspended_and_then_lost() -> None:
    async def wait_for_its_end() -> None:
        session = opened(90)
        seen: list[SessionState] = []
        session.add_callback(seen.append)
        assert session.state is SessionState.CONNECTED
        assert await session.wait_for(SessionState.SUSPENDED) is SessionState.SUSPENDED
        assert asyncio.get_running_loop().time() >= session.safe_until
        await session.lost.wait()
        assert seen == [SessionState.SUSPENDED, SessionState.LOST]
        with pytest.raises(SessionLost):
            session.require()

    run(wait_for_its_end())  # a busy machine may be so late that the session is lost immediately


async def test_the_clock_decides_even_before_any_timer_ran() -> None:
    session = opened(1000, sent_ago_s=1.0)
    assert session.state is SessionState.LOST  # without an await in between, as after SIGCONT
    assert session.lost.is_set()


async def test_safe_until_counts_from_sending() -> None:
    session = opened(90_000, sent_ago_s=20)
    sent_at = asyncio.get_running_loop().time() - 10
    assert session.renewed(sent_at)
    assert session.safe_until == pytest.approx(sent_at + 60)
    assert session.renewed(sent_at - 5)  # an older response that arrives late changes nothing
    assert session.safe_until == pytest.approx(sent_at + 60)


async def test_a_renewal_ends_a_suspension() -> None:
    session = opened(60_000)
    session.suspend()
    assert session.state is SessionState.SUSPENDED
    assert session.renewed(asyncio.get_running_loop().time())
    assert session.state is SessionState.CONNECTED


async def test_lost_is_final() -> None:
    session = opened(60_000)
    session.lose()
    assert not session.renewed(asyncio.get_running_loop().time())
    session.lose()
    assert session.state is SessionState.LOST


async def test_an_illegal_step_raises_and_changes_nothing() -> None:
    session = opened(60_000)
    session.lose()
    with pytest.raises(IllegalStep, match="DISCONNECTED is not legal in the state LOST"):
        session.suspend()
    assert session.state is SessionState.LOST


def test_every_state_has_its_legal_steps() -> None:
    assert STEPS.keys() == set(SessionState)
    assert STEPS[SessionState.LOST] == {SessionEvent.ENDED: SessionState.LOST}, "LOST is final"
    for state in (SessionState.CONNECTED, SessionState.SUSPENDED):
        assert STEPS[state].keys() == set(SessionEvent)


async def test_a_renewal_confirmed_after_the_deadline_is_too_late() -> None:
    session = opened(1000, sent_ago_s=1.0)
    assert not session.renewed(asyncio.get_running_loop().time())
    assert session.state is SessionState.LOST


async def test_callbacks_can_be_removed() -> None:
    session = opened(60_000)
    seen: list[SessionState] = []
    session.add_callback(seen.append)
    session.remove_callback(seen.append)
    session.remove_callback(seen.append)
    session.lose()
    assert seen == []


async def test_a_wait_for_a_state_ends_when_the_session_is_lost() -> None:
    session = opened(30)
    with pytest.raises(SessionLost):
        await asyncio.gather(session.wait_for(SessionState.LOST), session.lost.wait(), _reconnected(session))


async def _reconnected(session: PlainSession) -> None:
    await session.lost.wait()
    await session.wait_for(SessionState.CONNECTED)
