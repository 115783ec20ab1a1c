"""The mapping from keys of the store to keys of Consul's KV store."""

from __future__ import annotations

from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The keys below one prefix."""

    prefix: str

    @property
    def place(self) -> str:
        """The location of the store, for error messages."""
        return f"{self.prefix}/ in Consul"

    @property
    def identity(self) -> str:
        """The key that contains the store's identity."""
        return f"{self.prefix}/identity"

    def marker(self, identity: str) -> str:
        """Return the key that exists exactly while the store has this identity. Transactions check it."""
        return f"{self.prefix}/identity/{identity}"

    def probe(self, name: str) -> str:
        """Return a key for a trial write."""
        return f"{self.prefix}/probe/{name}"

    def data(self, key: str) -> str:
        """Return the Consul key of a store key, or the Consul prefix of a store prefix."""
        return f"{self.prefix}/keys/{key}"

    def key(self, stored: str) -> str:
        """Return the store key of a Consul key."""
        return stored[len(self.prefix) + len("/keys/") :]
