"""The conformance kit: with it the author of a backend proves that it is one.

Every property that ``parley.consensus.backend`` promises, and the recipes rely on, is a named check (``checks/``).
Whoever
writes a backend implements a ``Harness``, which makes a fresh store and the faults the checks act through, and runs all
of them, in pytest::

    class TestMyStore(ConformanceSuite):
        harness = MyHarness

or from a shell: ``python -m parley.consensus.conformance my_package:MyHarness``. None can be left out: a harness
cannot say that it is not able to, a test that is skipped fails, and what ``Capabilities`` declare is what is tested.

The kit needs nothing of Parley but ``consensus``: ``pip install parley-broker[conformance]``. Linux only.

* ``harness.py``: what to implement. ``processes.py``: most of it for a store that processes share. ``tasks.py``: for
  one that a single process has for itself. ``stores/``: the harnesses of the built-in stores, as examples.
* ``lab.py``: what a check has at hand. ``roles.py``: what other processes do meanwhile.
* ``linearizability.py``: judges recorded histories. ``model.py``, ``machine.py``: what any store is
  compared to.
* ``runner.py``, ``suite.py``, ``__main__.py``: ways to run it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.consensus.conformance.harness import Harness, Peer
from parley.consensus.conformance.processes import ProcessHarness

if TYPE_CHECKING:
    from parley.consensus.conformance.suite import ConformanceSuite as ConformanceSuite

__all__ = ["ConformanceSuite", "Harness", "Peer", "ProcessHarness"]


def __getattr__(name: str) -> object:
    if name == "ConformanceSuite":  # peers import this package too, and have no use for pytest
        from parley.consensus.conformance.suite import ConformanceSuite

        return ConformanceSuite
    raise AttributeError(name)
