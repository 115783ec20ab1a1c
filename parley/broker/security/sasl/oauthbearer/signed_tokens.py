"""Signed tokens: verification of their claims, and of their signature by a key of the issuer (KIP-768).

A token must name a public-key algorithm (RS, PS, ES, EdDSA), and be signed with a matching key of the issuer. It must
contain the times of its issue and its expiry, to which ``sasl.oauthbearer.clock.skew.seconds`` applies, and name the
issuer and one of the audiences that the configuration expects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

import jwt

from parley.broker.security.sasl.mechanism import MechanismSetup
from parley.broker.security.sasl.oauthbearer.issuer_keys import IssuerKeys, issuer_keys
from parley.broker.security.sasl.oauthbearer.token_verifier import TokenRefused, VerifiedToken, scopes_of
from parley.light_dataclasses import dataclass

_ALGORITHMS: Final[Mapping[str, frozenset[str]]] = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
}
"""The accepted algorithms for each type of key, excluding ``none`` and the algorithms with a shared secret."""
_HEADER_CHARACTERS_MAX: Final = 16 << 10
"""The maximum length of a token's encoded header. It is limited because the header is parsed on the event loop before
the signature is verified, so clients without an account choose it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The claims that a token must contain. If ``audiences`` is empty or ``issuer`` is None, any value is accepted.

    ``skew_s`` is the tolerated difference between the clocks of the issuer and this broker, in seconds. ``name_claim``
    and ``scope_claim`` name the claims that contain the user name and the scopes.
    """

    audiences: Sequence[str] = ()
    issuer: str | None = None
    skew_s: int = 30
    name_claim: str = "sub"
    scope_claim: str = "scope"


class SignedVerifier:
    """Verifies signed tokens (a ``TokenVerifier``)."""

    def __init__(self, keys: IssuerKeys, expected: Expected) -> None:
        self._keys = keys
        self._expected = expected

    def close(self) -> None:
        """Stop the periodic fetches of the issuer's keys."""
        self._keys.close()

    def verify(self, token: str) -> VerifiedToken | Awaitable[VerifiedToken]:
        if token.find(".", 0, _HEADER_CHARACTERS_MAX + 1) < 0:
            raise TokenRefused("the token has no header, or a header that is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise TokenRefused("the token is not a signed JWT") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
            raise TokenRefused("the header of the token is malformed")
        if not any(algorithm in fitting for fitting in _ALGORITHMS.values()):
            raise TokenRefused("the token is signed with an algorithm that is not accepted")
        renewal = self._keys.renew(key_id)
        if renewal is None:
            return self._verified(token, algorithm, self._keys.find(key_id))
        return self._verify_later(token, algorithm, key_id, renewal)

    async def _verify_later(
        self, token: str, algorithm: str, key_id: str | None, renewal: Awaitable[None]
    ) -> VerifiedToken:
        await renewal
        return self._verified(token, algorithm, self._keys.find(key_id))

    def _verified(self, token: str, algorithm: str, keys: Sequence[Mapping[str, Any]]) -> VerifiedToken:
        fitting = [key for key in keys if _fits(key, algorithm)]
        if not fitting:
            raise TokenRefused("the token is signed with a key that the issuer does not publish")
        for key in fitting:
            try:
                return self._accepted(self._claims(token, algorithm, key))
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, ValueError, RecursionError, OverflowError) as error:
                raise TokenRefused(f"the token was rejected: {type(error).__name__}") from None
        raise TokenRefused("the signature of the token is wrong")

    def _claims(self, token: str, algorithm: str, key: Mapping[str, Any]) -> Mapping[str, Any]:
        expected = self._expected
        claims: Mapping[str, Any] = jwt.decode(
            token,
            jwt.PyJWK(dict(key), algorithm).key,
            algorithms=[algorithm],
            audience=list(expected.audiences) or None,
            issuer=expected.issuer,
            leeway=expected.skew_s,
            options={
                "require": ["exp", "iat"],
                "verify_aud": bool(expected.audiences),
                # As in Kafka, the issuer's clock may be ahead: only "nbf" says that a token is not yet valid.
                "verify_iat": False,
                "verify_sub": False,
            },
        )
        return claims

    def _accepted(self, claims: Mapping[str, Any]) -> VerifiedToken:
        name = claims.get(self._expected.name_claim)
        if not isinstance(name, str) or not name.strip():
            raise TokenRefused(f"the token has no claim {self._expected.name_claim}")
        scopes_of(claims, self._expected.scope_claim)  # refuses a claim of another type
        if not isinstance(claims["iat"], int | float):
            raise TokenRefused("the token's time of issue is not a number")
        return VerifiedToken(name, int(float(claims["exp"]) * 1000))


def _fits(key: Mapping[str, Any], algorithm: str) -> bool:
    """Return True if the key may be used with the algorithm."""
    if key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm:
        return False
    return algorithm in _ALGORITHMS.get(str(key.get("kty")), ())


def signed_verifier(setup: MechanismSetup) -> SignedVerifier:
    """Return the verifier for a listener. Raises the ConfigError of ``issuer_keys``."""
    config = setup.config
    expected = Expected(
        audiences=config.sasl_oauthbearer_expected_audience,
        issuer=config.sasl_oauthbearer_expected_issuer,
        skew_s=config.sasl_oauthbearer_clock_skew_seconds,
        name_claim=config.sasl_oauthbearer_sub_claim_name,
        scope_claim=config.sasl_oauthbearer_scope_claim_name,
    )
    return SignedVerifier(issuer_keys(setup), expected)
