"""The states of a group: the table allows what the protocol needs, and every other step raises."""

from __future__ import annotations

from itertools import product

import pytest

from parley.broker.coordinators.groups.group import ENTERED_FROM, Group, GroupState
from parley.broker.runtime.states import IllegalStep


def test_a_rebalance_and_its_repetition_are_legal() -> None:
    group = Group("g", 0)
    for name in ("PREPARING_REBALANCE", "COMPLETING_REBALANCE", "PREPARING_REBALANCE", "EMPTY", "DEAD"):
        group.enter(GroupState[name], now_ms=7)
    assert (group.state, group.state_since_ms) == (GroupState.DEAD, 7)


@pytest.mark.parametrize(
    ("before", "after"), [step for step in product(GroupState, GroupState) if step[0] not in ENTERED_FROM[step[1]]]
)
def test_an_illegal_step_raises(before: GroupState, after: GroupState) -> None:
    group = Group("g", 0, state=before)
    with pytest.raises(IllegalStep, match=f"{after.name} is not legal in the state {before.name}"):
        group.enter(after, now_ms=0)
    assert group.state is before
