"""What verifies the tokens of OAUTHBEARER: the interface of Parley's verifiers and of an operator's own."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol


class TokenRefused(Exception):
    """A token is not accepted. The text says why, for the broker's log; it contains no token.

    ``status`` and ``scope`` are what the client learns.
    """

    def __init__(self, reason: str, *, status: str = "invalid_token", scope: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """An accepted token: the name of its user, and its expiry in wall-clock milliseconds."""

    name: str
    expires_at_ms: int | None = None


class TokenVerifier(Protocol):
    """Verifies tokens: the interface of ``sasl.server.callback.handler.class`` for OAUTHBEARER."""

    def verify(self, token: str) -> VerifiedToken | Awaitable[VerifiedToken]:
        """Return the user of the token. May return an awaitable instead. Raises TokenRefused."""
