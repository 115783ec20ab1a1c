"""Reduce a failing run: remove faults as long as the same invariant is still violated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from parley.tools.simulation.faults import Fault
from parley.tools.simulation.scenario import Outcome, Settings, simulate

RUNS_MAX = 100


def shrink(failure: Outcome, settings: Settings, tried: Callable[[int], None] = lambda left: None) -> Outcome:
    """Run the seed again with fewer faults, as long as the same invariant is violated, at most ``RUNS_MAX`` times.
    Returns the failing run with the fewest faults.

    ``tried`` is called after each run with the number of faults of the smallest failing run so far.
    """
    runs = 0

    def fails(faults: Sequence[Fault]) -> Outcome | None:
        nonlocal runs
        runs += 1
        outcome = simulate(failure.seed, replace(settings, faults=faults))
        same = any(each.invariant == failure.violations[0].invariant for each in outcome.violations)
        return outcome if same else None

    best = failure
    size = max(1, len(failure.faults) // 2)
    while runs < RUNS_MAX:
        start, smaller = 0, None
        while start < len(best.faults) and runs < RUNS_MAX:
            rest = [*best.faults[:start], *best.faults[start + size :]]
            found = fails(rest)
            if found is not None:
                best = smaller = found
            else:
                start += size
            tried(len(best.faults))
        if smaller is None and size == 1:
            break
        size = max(1, size // 2)
    return best
