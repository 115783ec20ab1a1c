"""The kit as a class of tests: ``class TestMyStore(ConformanceSuite): harness = MyHarness``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from parley.consensus.conformance.harness import Harness
from parley.consensus.conformance.lab import Check
from parley.consensus.conformance.runner import all_checks, run_check


class ConformanceSuite:
    """One test for each property, ``test_property[<name of the check>]``."""

    harness: ClassVar[Callable[[], Harness]]
    """The class of your harness, or a function that returns one."""
    slow_marks: ClassVar[Sequence[pytest.MarkDecorator]] = ()
    """The marks of slow checks, such as ``(pytest.mark.slow,)``."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "check" in metafunc.fixturenames:
            metafunc.parametrize(
                "check",
                [pytest.param(each, id=each.name, marks=self.slow_marks if each.slow else ()) for each in all_checks()],
            )

    def test_property(self, check: Check, record_property: Callable[[str, object], None]) -> None:
        for measure in run_check(check, type(self).harness()):
            record_property(measure.what, f"{measure.value:.4g} {measure.unit}")
