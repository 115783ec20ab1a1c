"""What protects a store from other clients: who may use its tree, and whether its connections are encrypted.

A backend tries it out rather than trust its configuration: it does what a client without an account could do. Nothing
is changed by that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Guard(Enum):
    """The state of one protection."""

    CLOSED = "closed"
    OPEN = "open"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One protection, in words for the operator. ``advice`` says how to close it; empty if it is closed."""

    guard: Guard
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Protection:
    """Whether the store's tree is locked for its account, and whether connections to it are encrypted."""

    tree: Finding
    connection: Finding


def unknown_protection() -> Protection:
    """For stores that do not report it."""
    finding = Finding(Guard.UNKNOWN, "this kind of store does not report it", "see the documentation of the store")
    return Protection(finding, finding)


def of_connection(servers: str, *, encrypted: bool, advice: str) -> Finding:
    """Whether connections to ``servers`` use TLS; ``advice`` says how to switch it on."""
    if encrypted:
        return Finding(Guard.CLOSED, f"connections to {servers} use TLS")
    return Finding(Guard.OPEN, f"connections to {servers} are plaintext, logins included", advice)
