"""How a store is protected from other clients: which clients can use its tree, and whether its connections are
encrypted.

A backend probes this instead of trusting its configuration: it tries what a client without an account could do. The
probes change nothing.
"""

from __future__ import annotations

from enum import Enum

from parley.light_dataclasses import dataclass


class Guard(Enum):
    """Whether a protection keeps other clients out: CLOSED if it does, OPEN if it does not, UNKNOWN if the backend
    cannot determine this."""

    CLOSED = "closed"
    OPEN = "open"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One protection, described for the operator. ``advice`` says how to close a gap; it is empty if there is none."""

    guard: Guard
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Protection:
    """Whether only the cluster's account can use the store's tree, and whether connections to the store are
    encrypted."""

    tree: Finding
    connection: Finding


def unknown_protection() -> Protection:
    """Return the findings for a store whose backend cannot probe its protection."""
    finding = Finding(Guard.UNKNOWN, "this kind of store does not report it", "see the documentation of the store")
    return Protection(finding, finding)


def of_connection(servers: str, *, encrypted: bool, advice: str) -> Finding:
    """Return the finding on connections to ``servers``: whether they use TLS. ``advice`` says how to enable TLS."""
    if encrypted:
        return Finding(Guard.CLOSED, f"connections to {servers} use TLS")
    return Finding(Guard.OPEN, f"connections to {servers} are plaintext, logins included", advice)
