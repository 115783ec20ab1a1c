"""A check in which Hypothesis makes the same calls on the store and on the kit's model."""

from __future__ import annotations

from parley.consensus.conformance.lab import Check, register
from parley.consensus.conformance.machine import explore

register(
    Check(
        "model-agreement",
        "For any sequence of calls on keys, transactions, sessions and watches that Hypothesis generates, the store "
        "behaves like the kit's model.",
        slow=True,
        run_alone=explore,
    )
)
