"""The kit on the embedded store, its peers processes that are killed, stopped and resumed."""

from __future__ import annotations

import pytest

from parley.consensus.conformance import ConformanceSuite
from parley.consensus.conformance.stores.local import LocalHarness

pytestmark = pytest.mark.slow


class TestLocal(ConformanceSuite):
    harness = LocalHarness
    slow_marks = (pytest.mark.slow,)
