"""The checks, one module for each part of the interface. Importing this package declares all checks."""

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
