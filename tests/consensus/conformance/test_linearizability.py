"""The linearizability checker: which histories it accepts and rejects, and that it agrees with an exhaustive search of
orders."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.consensus.conformance.linearizability import Operation, State, judge
from tests.support.proportion import examples


def write(called: float, returned: float | None, value: str | None, held: bool | None = True) -> Operation:
    return Operation(called, returned, {}, {"x": value}, held)


def read(called: float, returned: float, value: str | None) -> Operation:
    return Operation(called, returned, {"x": value})


def cas(called: float, returned: float | None, old: str | None, new: str, held: bool | None = True) -> Operation:
    return Operation(called, returned, {"x": old}, {"x": new}, held)


def test_one_after_the_other() -> None:
    assert judge([]).linearizable
    assert judge(
        [read(0, 1, None), write(2, 3, "a"), read(4, 5, "a"), write(6, 7, None), read(8, 9, None)]
    ).linearizable


def test_a_stale_read_is_found() -> None:
    verdict = judge([write(0, 1, "a"), write(2, 3, "b"), read(4, 5, "a")])
    assert not verdict.linearizable
    assert verdict.explained == 2
    assert verdict.stuck_at == (read(4, 5, "a"),)


def test_a_read_at_the_same_time_may_see_either() -> None:
    for value in (None, "a"):
        assert judge([write(0, 5, "a"), read(1, 2, value)]).linearizable


def test_reads_that_go_back_in_time_are_found() -> None:
    assert not judge([write(0, 9, "a"), read(1, 2, "a"), read(3, 4, None)]).linearizable


def test_a_lost_update_is_found() -> None:
    history = [write(0, 1, "0"), cas(2, 5, "0", "1"), cas(3, 6, "0", "2")]
    assert not judge(history).linearizable
    assert judge([*history[:2], cas(3, 6, "0", "2", held=False)]).linearizable
    assert not judge([write(0, 1, "0"), cas(2, 3, "0", "1", held=False)]).linearizable


def test_half_a_transaction_is_found() -> None:
    both = Operation(0, 9, {}, {"x": "1", "y": "1"})
    assert judge([both, Operation(1, 2, {"x": "1", "y": "1"})]).linearizable
    assert not judge([both, Operation(1, 2, {"x": "1", "y": None})]).linearizable
    assert not judge([both, read(1, 2, "1"), Operation(3, 4, {"y": None})]).linearizable


def test_a_lost_response_may_have_been_applied_late_or_never() -> None:
    lost = write(0, None, "a", held=None)
    assert judge([lost, read(1, 2, None)]).linearizable
    assert judge([lost, read(1, 2, None), read(3, 4, "a")]).linearizable
    assert not judge([lost, read(1, 2, "a"), read(3, 4, None)]).linearizable


def test_a_long_history_is_judged() -> None:
    history = [cas(n, n + 1.5, str(n) if n else None, str(n + 1)) for n in range(2000)]
    assert judge(history).linearizable
    assert not judge([*history, read(2002, 2003, "7")]).linearizable


def explained_by_some_order(history: Sequence[Operation]) -> bool:
    """Return True if some order explains the history, by trying every order."""
    unknown = [n for n, each in enumerate(history) if each.returned is None]
    for left_out in itertools.chain.from_iterable(itertools.combinations(unknown, n) for n in range(len(unknown) + 1)):
        for order in itertools.permutations([each for n, each in enumerate(history) if n not in left_out]):
            in_time = all(
                not (later.returned is not None and later.returned < earlier.called)
                for n, earlier in enumerate(order)
                for later in order[n + 1 :]
            )
            if in_time and _possible(order, frozenset()):
                return True
    return False


def _possible(order: Sequence[Operation], state: State) -> bool:
    if not order:
        return True
    return any(_possible(order[1:], outcome) for outcome in order[0].outcomes(state))


values = st.none() | st.sampled_from("ab")
states = st.dictionaries(st.sampled_from("xy"), values, max_size=2)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    called = draw(st.integers(0, 9))
    held = draw(st.sampled_from([True, True, True, False, None]))
    returned = None if held is None else called + draw(st.integers(1, 6)) + 0.5
    return Operation(called, returned, draw(states), draw(states), held)


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(st.lists(operations(), max_size=5))
def test_it_agrees_with_trying_every_order(history: list[Operation]) -> None:
    assert judge(history).linearizable == explained_by_some_order(history)
