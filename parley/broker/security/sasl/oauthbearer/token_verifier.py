"""The interface of OAUTHBEARER token verifiers, both Parley's and an operator's."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from parley.light_dataclasses import dataclass


class TokenRefused(Exception):
    """Raised to reject a token. The text gives the reason for the broker's log, and must not contain the token.

    ``status`` and ``scope`` are sent to the client.
    """

    def __init__(self, reason: str, *, status: str = "invalid_token", scope: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """An accepted token: its user name, and its expiry time in wall-clock milliseconds (None if it does not expire)."""

    name: str
    expires_at_ms: int | None = None


class TokenVerifier(Protocol):
    """Verifies tokens: the interface of ``sasl.server.callback.handler.class`` for OAUTHBEARER."""

    def verify(self, token: str) -> VerifiedToken | Awaitable[VerifiedToken]:
        """Return the verified token, or an awaitable of it. This method, or the awaitable, raises TokenRefused to
        reject the token."""


def scopes_of(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """Return the scopes in a claim, which is a list or a string separated by spaces. Returns an empty set if the claim
    is missing. Raises TokenRefused if the claim has another type."""
    scopes = claims.get(claim, "")
    if not isinstance(scopes, str | list):
        raise TokenRefused(f"the claim {claim} is neither a string nor a list")
    return frozenset(scopes.split() if isinstance(scopes, str) else map(str, scopes))
