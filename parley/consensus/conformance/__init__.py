"""The conformance kit: checks with which the author of a backend proves that it fulfills the contract.

Every property that ``parley.consensus.backend`` promises and the recipes rely on is a named check (``checks/``). The
author implements a ``Harness``, which creates fresh stores and faults, and runs all checks in pytest::

    class TestMyStore(ConformanceSuite):
        harness = MyHarness

or from a shell: ``python -m parley.consensus.conformance my_package:MyHarness``. No check can be left out: a skipped
test fails, and the kit tests exactly what the backend's ``Capabilities`` declare. See "Proving it" in
docs/coordination.md.

The kit imports nothing from Parley except ``parley.consensus``: ``pip install '../parley[conformance]'``. Linux only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.consensus.conformance.harness import Harness, Peer
from parley.consensus.conformance.processes import ProcessHarness

if TYPE_CHECKING:
    from parley.consensus.conformance.suite import ConformanceSuite as ConformanceSuite

__all__ = ["ConformanceSuite", "Harness", "Peer", "ProcessHarness"]


def __getattr__(name: str) -> object:
    if name == "ConformanceSuite":  # peer processes import this package without pytest
        from parley.consensus.conformance.suite import ConformanceSuite

        return ConformanceSuite
    raise AttributeError(name)
