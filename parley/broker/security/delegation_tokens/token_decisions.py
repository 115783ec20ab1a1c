"""Decisions about delegation tokens (KIP-48, KIP-373): pure functions of the token, the principal and the time.

Times are in milliseconds. The rules are Kafka's: the owner and the renewers may renew and expire a token, and no
renewal extends it beyond its maximum lifetime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from parley.broker.security.delegation_tokens.delegation_token import DelegationToken
from parley.broker.security.principal import USER, Principal
from parley.broker.security.session import ClientSession
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError

TIME_MAX_MS: Final = 2**63 - 1
RENEWERS_MAX: Final = 100
NAME_MAX: Final = 1024
"""Limits on the size of a token, because every broker keeps it in memory. Kafka has no such limits."""


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """The values of ``delegation.token.max.lifetime.ms`` and ``delegation.token.expiry.time.ms``."""

    lifetime_ms: int
    expiry_ms: int


def check_may_ask(client: ClientSession, *, has_key: bool) -> None:
    """Raise KafkaError (DELEGATION_TOKEN_REQUEST_NOT_ALLOWED) if the client may not use the token APIs, or
    (DELEGATION_TOKEN_AUTH_DISABLED) if the broker has no key for tokens.

    A client must be authenticated, but not with a token: a token must not be exchangeable for a longer-lived one.
    """
    if client.authenticated_by_token or client.is_anonymous:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if not has_key:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)


def new_token(
    token_id: str,
    owner: Principal,
    requester: Principal,
    renewers: Sequence[Principal],
    lifetime_ms: int,
    now_ms: int,
    limits: TokenLimits,
) -> DelegationToken:
    """Return a new token. ``lifetime_ms`` is the lifetime that the client requests; 0 or less means the maximum.

    Raises KafkaError: INVALID_PRINCIPAL_TYPE for a renewer that is not a user or an owner whose kind is too long, or
    INVALID_REQUEST for too many renewers and for names that are empty or too long.
    """
    if len(owner.kind) > NAME_MAX or any(renewer.kind != USER for renewer in renewers):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    if len(renewers) > RENEWERS_MAX or not all(0 < len(each.name) <= NAME_MAX for each in (owner, *renewers)):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    lifetime_ms = min(limits.lifetime_ms, lifetime_ms) if lifetime_ms > 0 else limits.lifetime_ms
    max_ms = min(now_ms + lifetime_ms, TIME_MAX_MS)
    expires_ms = min(max_ms, now_ms + limits.expiry_ms)
    return DelegationToken(token_id, owner, requester, tuple(renewers), now_ms, expires_ms, max_ms)


def renewed(
    token: DelegationToken | None, principal: Principal, period_ms: int, now_ms: int, limits: TokenLimits
) -> DelegationToken:
    """Return the token with its new expiry time, ``period_ms`` from now, or the latest possible time if ``period_ms``
    is 0 or less.

    Raises KafkaError: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, or DELEGATION_TOKEN_OWNER_MISMATCH if the
    principal may not change the token.
    """
    token = _unexpired(token, now_ms)
    _check_may_change(token, principal)
    period_ms = min(limits.expiry_ms, period_ms) if period_ms > 0 else limits.expiry_ms
    return replace(token, expires_ms=min(token.max_ms, now_ms + period_ms))


def expiring(
    token: DelegationToken | None, principal: Principal, period_ms: int, now_ms: int
) -> tuple[DelegationToken | None, int]:
    """Return the token with its new expiry time, and that time.

    If ``period_ms`` is negative, the returned token is None: the caller must remove it, even if it has expired. Raises
    KafkaError: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_OWNER_MISMATCH if the principal may not change the token,
    or DELEGATION_TOKEN_EXPIRED.
    """
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    _check_may_change(token, principal)
    if period_ms < 0:
        return None, now_ms
    token = _unexpired(token, now_ms)
    expires_ms = min(token.max_ms, now_ms + period_ms)
    return replace(token, expires_ms=expires_ms), expires_ms


def is_expired(token: DelegationToken, now_ms: int) -> bool:
    """Return True if clients can no longer log in with the token."""
    return min(token.expires_ms, token.max_ms) < now_ms


def _unexpired(token: DelegationToken | None, now_ms: int) -> DelegationToken:
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    if is_expired(token, now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return token


def _check_may_change(token: DelegationToken, principal: Principal) -> None:
    if not token.may_be_changed_by(principal):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
