"""Principals: the identities that ACLs, quotas and the audit log name."""

from __future__ import annotations

from parley.light_dataclasses import dataclass

USER = "User"
"""The kind of every principal that comes from a login or a certificate."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated identity. ``kind`` is ``User``, or the kind that a principal builder assigns."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Return Kafka's notation, for example ``User:alice``."""
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Parse a principal in Kafka's notation, ``kind:name``, for example ``User:alice``.

        The name may contain colons. Raises ValueError if the kind or the first colon is missing.
        """
        kind, colon, name = text.partition(":")
        if not colon or not kind:
            raise ValueError(f"{text!r} is not a principal: write it as kind:name, for example User:alice")
        return cls(kind, name)


def parse_super_users(text: str) -> tuple[Principal, ...]:
    """Parse ``super.users``: principals separated by semicolons. Raises ValueError if a principal is malformed."""
    return tuple(Principal.parse(part.strip()) for part in text.split(";") if part.strip())


def user(name: str) -> Principal:
    """Return the principal of the kind ``User`` with this name."""
    return Principal(USER, name)


ANONYMOUS = user("ANONYMOUS")
"""The principal of a client that has neither logged in nor presented a certificate."""
