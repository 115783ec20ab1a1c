"""Where the store's keys are in Consul's KV store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The keys below one prefix."""

    prefix: str

    @property
    def place(self) -> str:
        """For error messages."""
        return f"{self.prefix}/ in Consul"

    @property
    def identity(self) -> str:
        """The key that holds the store's identity."""
        return f"{self.prefix}/identity"

    def marker(self, identity: str) -> str:
        """The key that exists exactly while the store has this identity; transactions check it."""
        return f"{self.prefix}/identity/{identity}"

    def probe(self, name: str) -> str:
        """A key for a trial write."""
        return f"{self.prefix}/probe/{name}"

    def data(self, key: str) -> str:
        """The Consul key of a store key, or the beginning of those below a prefix."""
        return f"{self.prefix}/keys/{key}"

    def key(self, stored: str) -> str:
        """The store key of a Consul key."""
        return stored[len(self.prefix) + len("/keys/") :]
