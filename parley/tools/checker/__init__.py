"""A history checker for any Kafka cluster: compares the acknowledgements of producers with the records of consumers.

::

    with Trial(bootstrap, "a-topic", partitions=6, producers=2, readers=1) as trial:
        ...                      # break things: kill brokers, cut networks
    verdict = trial.verdict()
    assert verdict.ok, verdict

``history.py`` defines the record of a run, ``verdict.py`` the rules that it is checked against, and ``trial.py`` the
librdkafka clients that produce it (``transactional_producer.py``: with transactions). A ``History`` needs no client, so
the history of any other client can be checked, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.tools.checker.history import Guarantees, History, Outcome, payload
from parley.tools.checker.verdict import Kind, Verdict, Violation, check

if TYPE_CHECKING:
    from parley.tools.checker.trial import Trial

__all__ = ["Guarantees", "History", "Kind", "Outcome", "Trial", "Verdict", "Violation", "check", "payload"]


def __getattr__(name: str) -> object:
    """Return ``Trial``. It is imported only when it is used, because it needs librdkafka."""
    if name == "Trial":
        from parley.tools.checker.trial import Trial

        return Trial
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
