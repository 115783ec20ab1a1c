"""The table of a broker's membership states: the legal paths, and that an illegal step raises."""

from __future__ import annotations

from itertools import product

import pytest

from parley.broker.membership.broker_state import TRANSITIONS, BrokerEvent, BrokerState, next_state
from parley.broker.runtime.states import IllegalStep

S, E = BrokerState, BrokerEvent


def after(*events: BrokerEvent) -> BrokerState:
    state = S.CONNECTING
    for event in events:
        state = next_state(state, event)
    return state


JOINED = (E.SESSION_OPENED, E.JOINED, E.REGISTERED)


@pytest.mark.parametrize(
    ("events", "state"),
    [
        (JOINED, S.ACTIVE),
        ((*JOINED, E.FENCED), S.FENCED),
        ((*JOINED, E.FENCED, E.MEMBERSHIP_ENDED), S.JOINING),
        ((*JOINED, E.SESSION_ENDED), S.CONNECTING),
        ((*JOINED, E.LEAVE, E.FENCED), S.LEAVING),
        ((*JOINED, E.LEAVE, E.SESSION_ENDED, E.SESSION_OPENED, E.JOINED), S.LEAVING),
        ((*JOINED, E.LEAVE, E.STOP), S.STOPPED),
        ((E.STOP, E.LEAVE), S.STOPPED),
    ],
)
def test_the_ways_through_a_membership(events: tuple[BrokerEvent, ...], state: BrokerState) -> None:
    assert after(*events) is state


def test_an_illegal_step_raises() -> None:
    for state, event in set(product(S, E)) - TRANSITIONS.keys():
        with pytest.raises(IllegalStep, match=f"{event.name} is not legal in the state {state.name}"):
            next_state(state, event)
    assert (S.CONNECTING, E.JOINED) not in TRANSITIONS
    assert (S.STOPPED, E.SESSION_OPENED) not in TRANSITIONS
