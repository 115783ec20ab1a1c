"""The hot paths take no more work than their budgets allow. No clock is involved, so a busy machine changes nothing."""

from __future__ import annotations

import sys

import pytest

from tests.hot_paths.__main__ import counted
from tests.hot_paths.budgets import PYTHON, RENEW, budgets, deviations
from tests.hot_paths.counting import WORK_PER_CALL, Counter

only_with_budgets = pytest.mark.skipif(sys.version_info[:2] != PYTHON, reason="the budgets are for Python 3.11")


@pytest.mark.soak  # until it never waits for a timer of the broker, which takes minutes while time is slowed
@only_with_budgets
def test_the_hot_paths_keep_to_their_budgets() -> None:
    found = deviations(counted(), budgets())
    assert not found, "\n".join([*found, f"If that is meant, write the budgets again: {RENEW}"])


def test_each_deviation_is_named_with_its_size() -> None:
    allowed = {"fetch": 1000, "produce": 1000, "commit": 1000, "join": 1000, "gone": 1}
    counted = {"fetch": 1031, "produce": 1029, "commit": 899, "join": 901, "new": 1}
    assert deviations(counted, allowed) == [
        "commit: -10.1%, from 1,000 to 899 instructions. It has become cheaper: lower the budget, so that it stays so",
        "fetch: +3.1%, from 1,000 to 1,031 instructions. A request on this path has become more expensive",
        "gone: it has a budget, but is not measured",
        "new: it has no budget",
    ]


@only_with_budgets
def test_the_same_work_counts_the_same_and_a_call_more_counts_more() -> None:
    scope: dict[str, object] = {}
    source = "def work(times):\n for each in range(times):\n  abs(each)\n"
    exec(compile(source, "elsewhere.py", "exec"), scope)
    work = scope["work"]
    assert callable(work)

    def count(times: int) -> int:
        with Counter() as counter:
            work(times)
        return counter.work

    assert count(100) == count(100)
    assert count(101) - count(100) == (count(1100) - count(100)) / 1000 > WORK_PER_CALL
