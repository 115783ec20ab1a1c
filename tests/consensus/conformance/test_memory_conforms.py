"""Runs the conformance kit on the store in memory."""

from __future__ import annotations

import pytest

from parley.consensus.conformance import ConformanceSuite
from parley.consensus.conformance.stores.memory import MemoryHarness


class TestMemory(ConformanceSuite):
    harness = MemoryHarness
    slow_marks = (pytest.mark.slow,)
