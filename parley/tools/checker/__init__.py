"""A history checker for any Kafka cluster: the acknowledgements of producers against the records of consumers.

::

    with Trial(bootstrap, "a-topic", partitions=6, producers=2, readers=1) as trial:
        ...                      # break things: kill brokers, cut networks
    verdict = trial.verdict()
    assert verdict.ok, verdict

``history.py`` has the record of a run, ``verdict.py`` the rules that it is checked against, and ``trial.py`` the
librdkafka clients that produce it (with transactions: ``transactional_producer.py``). The history of any other client
can be checked too: a ``History`` needs no client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.tools.checker.history import Guarantees, History, Outcome, payload
from parley.tools.checker.verdict import Kind, Verdict, Violation, check

if TYPE_CHECKING:
    from parley.tools.checker.trial import Trial

__all__ = ["Guarantees", "History", "Kind", "Outcome", "Trial", "Verdict", "Violation", "check", "payload"]


def __getattr__(name: str) -> object:
    """Import librdkafka only when a Trial is used."""
    if name == "Trial":
        from parley.tools.checker.trial import Trial

        return Trial
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
