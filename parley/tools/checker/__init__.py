"""A history checker for any Kafka cluster: what producers were told, against what consumers saw.

::

    with Trial(bootstrap, "a-topic", partitions=6, producers=2, readers=1) as trial:
        ...                      # break things: kill brokers, cut networks
    verdict = trial.verdict()
    assert verdict.ok, verdict

:mod:`parley.tools.checker.history` has what is written down, :mod:`parley.tools.checker.verdict` the rules it is
judged by,
:mod:`parley.tools.checker.trial` the clients that make a history, with librdkafka. Histories of other clients are
written down by whoever runs these: a :class:`History` needs no client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.tools.checker.history import Guarantees, History, payload
from parley.tools.checker.verdict import Kind, Verdict, Violation, check

if TYPE_CHECKING:
    from parley.tools.checker.trial import Trial

__all__ = ["Guarantees", "History", "Kind", "Trial", "Verdict", "Violation", "check", "payload"]


def __getattr__(name: str) -> object:
    """Import the client only for who runs one."""
    if name == "Trial":
        from parley.tools.checker.trial import Trial

        return Trial
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
