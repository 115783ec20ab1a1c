"""The kit on the store in memory."""

from __future__ import annotations

import pytest

from consensus.conformance import ConformanceSuite
from consensus.conformance.stores.memory import MemoryHarness


class TestMemory(ConformanceSuite):
    harness = MemoryHarness
    slow_marks = (pytest.mark.slow,)
