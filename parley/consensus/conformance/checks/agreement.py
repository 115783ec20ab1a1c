"""The store and the model of the kit, driven alike by Hypothesis."""

from __future__ import annotations

from parley.consensus.conformance.lab import Check, register
from parley.consensus.conformance.machine import explore

register(
    Check(
        "model-agreement",
        "Whatever sequence of calls on keys, transactions, sessions and watches Hypothesis thinks of, the store "
        "answers as the kit's model does.",
        slow=True,
        run_alone=explore,
    )
)
