"""The properties, one module for each part of the interface; importing this package declares them all."""

from parley.consensus.conformance.checks import (  # noqa: F401
    agreement,
    elections,
    groups,
    histories,
    keyvalue,
    sessions,
    stores,
    transactions,
    watches,
)
