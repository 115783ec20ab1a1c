"""The invariant that limits pauses.

* **Continues**: if at most one broker has a fault, every partition acknowledges records again within two sessions.

The time starts again whenever a fault begins or ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from parley.protocol.topic_partition import TopicPartition
from parley.tools.simulation.client_invariants import Ledger, Violations
from parley.tools.simulation.clients import REQUEST_TIMEOUT_S


class Pauses:
    """The check that no partition goes without an acknowledged record for too long. Call ``check`` regularly."""

    def __init__(
        self,
        now: Callable[[], float],
        ledger: Ledger,
        violations: Violations,
        partitions: Collection[TopicPartition],
        session_s: float,
    ) -> None:
        self._now = now
        self._ledger = ledger
        self._violations = violations
        self._partitions = partitions
        self._bound_s = 2 * session_s + REQUEST_TIMEOUT_S  # the client notices a silent leader by its own timeout
        self._calm_since = now()

    def disturbed(self) -> None:
        """Restart the time: a fault begins or ends, or the cluster cannot be expected to make progress."""
        self._calm_since = self._now()

    def check(self) -> None:
        """Report each partition that has not acknowledged a record for too long."""
        for at in self._partitions:
            since = max(self._calm_since, self._ledger.acknowledged_at[at])
            if self._now() - since > self._bound_s:
                text = f"{at[0]}-{at[1]} has acknowledged nothing for {self._bound_s:g} s, since {since:.4f}"
                self._violations.report("Continues", text)
