"""The kit finds faults: each store with a planted fault fails the check for that fault."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

from parley.consensus.conformance import Harness, ProcessHarness, machine
from parley.consensus.conformance.lab import CHECKS, Broken
from parley.consensus.conformance.runner import run_check
from parley.consensus.errors import CoordinationError
from tests.consensus.conformance.mutants import found_by, mutants


def marked(mutant: type[Harness]) -> object:
    slow = CHECKS[found_by(mutant)].slow or issubclass(mutant, ProcessHarness)
    return pytest.param(mutant, id=mutant.__name__, marks=pytest.mark.slow if slow else ())


@pytest.mark.parametrize("mutant", [marked(mutant) for mutant in mutants()])
def test_a_planted_fault_is_found(mutant: type[Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    # Which values Hypothesis prefers depends on the loaded modules. 100 examples miss some faults in one run of twelve.
    searching = settings(machine.SETTINGS, phases=[Phase.generate], max_examples=2000)
    monkeypatch.setattr(machine, "SETTINGS", searching)
    with pytest.raises((Broken, CoordinationError, ExceptionGroup)) as caught:
        run_check(CHECKS[found_by(mutant)], mutant())
    if isinstance(caught.value, ExceptionGroup):
        assert caught.group_contains(Broken)


def test_there_is_a_planted_fault_for_nearly_every_check() -> None:
    found = {found_by(mutant) for mutant in mutants()}
    assert found <= CHECKS.keys()
    assert len(CHECKS.keys() - found) <= 14, sorted(CHECKS.keys() - found)
