"""Runs the conformance kit on the embedded store. Its peers are processes that are killed, stopped and resumed."""

from __future__ import annotations

import pytest

from parley.consensus.conformance import ConformanceSuite
from parley.consensus.conformance.stores.local import LocalHarness

pytestmark = pytest.mark.slow


class TestLocal(ConformanceSuite):
    harness = LocalHarness
    slow_marks = (pytest.mark.slow,)
