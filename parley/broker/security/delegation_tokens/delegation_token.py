"""A delegation token (KIP-48) as the metadata stores it.

The token's secret is not stored: it is the HMAC of the token's id under ``delegation.token.secret.key``, which every
broker knows.
"""

from __future__ import annotations

from collections.abc import Set

from parley.broker.security.principal import Principal
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token. Times are in milliseconds since 1970.

    A client that logs in with the token becomes its ``owner``. The ``requester`` created the token, possibly for
    another principal (KIP-373). The token cannot be renewed beyond ``max_ms``.
    """

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def may_be_changed_by(self, principal: Principal) -> bool:
        """Return True if the principal may renew or expire the token. As in Kafka, the requester may not."""
        return principal in (self.owner, *self.renewers)

    def concerns(self, principal: Principal) -> bool:
        """Return True if the principal may see the token. As in Kafka, this includes the requester."""
        return principal == self.requester or self.may_be_changed_by(principal)

    def concerns_any(self, principals: Set[Principal]) -> bool:
        """Return True if at least one of the principals may see the token.

        Looks up the token's few principals in the set, because a client may name tens of thousands.
        """
        return any(each in principals for each in (self.owner, self.requester, *self.renewers))
