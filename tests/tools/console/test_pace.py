"""The rates of work in progress."""

from __future__ import annotations

from parley.tools.console.pace import WINDOW_S, Pace


def test_a_rate_needs_two_looks() -> None:
    pace: Pace[str] = Pace()
    assert pace.look(0.0, {"a": 100}) == {"a": None}
    assert pace.look(2.0, {"a": 300, "b": 7}) == {"a": 100.0, "b": None}
    assert pace.look(4.0, {"a": 300}) == {"a": 50.0}


def test_a_rate_is_that_of_the_last_half_minute() -> None:
    pace: Pace[str] = Pace()
    pace.look(0.0, {"a": 0})
    pace.look(1.0, {"a": 1_000_000})
    assert pace.look(1.0 + WINDOW_S, {"a": 1_000_000}) == {"a": 0.0}


def test_work_that_begins_again_has_no_rate_yet() -> None:
    pace: Pace[str] = Pace()
    pace.look(0.0, {"a": 500})
    assert pace.look(1.0, {"a": 10}) == {"a": None}
    assert pace.look(2.0, {}) == {}
    assert pace.look(3.0, {"a": 10}) == {"a": None}
