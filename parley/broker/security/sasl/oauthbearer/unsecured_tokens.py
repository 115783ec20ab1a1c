"""Unsigned tokens, as Kafka's unsecured validator accepts them. Only for tests and development.

The options of the JAAS entry are Kafka's: ``unsecuredValidatorPrincipalClaimName``,
``unsecuredValidatorScopeClaimName``, ``unsecuredValidatorRequiredScope`` and
``unsecuredValidatorAllowableClockSkewMs``.
"""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final

from parley.broker.config import ConfigError, Problem
from parley.broker.security.sasl.oauthbearer.token_verifier import TokenRefused, VerifiedToken, scopes_of

_log = logging.getLogger(__name__)

_PREFIX: Final = "unsecuredValidator"


class UnsecuredVerifier:
    """Checks the claims of a token, but not its origin (a ``TokenVerifier``)."""

    def __init__(self, options: Mapping[str, str], wall_ms: Callable[[], int]) -> None:
        """Read the ``options`` of the JAAS entry. Raises ConfigError if an option is invalid."""
        self._wall_ms = wall_ms
        self._name_claim = options.get(f"{_PREFIX}PrincipalClaimName", "sub")
        self._scope_claim = options.get(f"{_PREFIX}ScopeClaimName", "scope")
        self._scopes = frozenset(options.get(f"{_PREFIX}RequiredScope", "").split())
        skew = options.get(f"{_PREFIX}AllowableClockSkewMs", "0")
        if not skew.isdecimal():
            raise ConfigError([Problem("sasl.jaas.config", "[hidden]", f"{_PREFIX}AllowableClockSkewMs in ms")])
        self._skew_ms = int(skew)
        _log.warning("OAUTHBEARER accepts unsigned tokens: any client can log in as any user")

    def verify(self, token: str) -> VerifiedToken:
        header, claims = (_decoded(part) for part in _parts(token))
        if header.get("alg") != "none":
            raise TokenRefused("the token is signed, but signatures are not verified here")
        expires_at_ms = _milliseconds(claims, "exp")
        now = self._wall_ms()
        if expires_at_ms is None or expires_at_ms + self._skew_ms <= now:
            raise TokenRefused("the token has expired, or has no expiry time")
        for claim in ("iat", "nbf"):
            begins_at_ms = _milliseconds(claims, claim)
            if begins_at_ms is not None and begins_at_ms - self._skew_ms > now:
                raise TokenRefused(f"the token is not valid yet ({claim})")
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not name:
            raise TokenRefused(f"the token has no claim {self._name_claim}")
        if missing := self._scopes - scopes_of(claims, self._scope_claim):
            wanted = " ".join(sorted(self._scopes))
            raise TokenRefused(f"the token lacks the scope {min(missing)}", status="insufficient_scope", scope=wanted)
        return VerifiedToken(name, expires_at_ms)


def _parts(token: str) -> tuple[str, str]:
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        raise TokenRefused("the token is not an unsigned JWT")
    return parts[0], parts[1]


def _decoded(part: str) -> Mapping[str, Any]:
    try:
        found = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        raise TokenRefused("the token is not a JWT") from None
    if not isinstance(found, dict):
        raise TokenRefused("the token is not a JWT")
    return found


def _milliseconds(claims: Mapping[str, Any], claim: str) -> int | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise TokenRefused(f"the claim {claim} is not a time")
    return int(value * 1000)
