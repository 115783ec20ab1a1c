"""A delegation token (KIP-48), as the metadata keeps it.

Its secret is not kept: it is the HMAC of the token's id under ``delegation.token.secret.key``, which every broker has.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from parley.broker.security.principal import Principal


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token. Times are in milliseconds since 1970.

    A client that logs in with the token is its ``owner``. The ``requester`` created it, perhaps for another principal
    (KIP-373). It cannot be renewed beyond ``max_ms``.
    """

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def may_be_changed_by(self, principal: Principal) -> bool:
        """True if the principal may renew the token or let it expire. The requester may not, as in Kafka."""
        return principal in (self.owner, *self.renewers)

    def concerns(self, principal: Principal) -> bool:
        """True if the principal may see the token: the requester, too, as in Kafka."""
        return principal == self.requester or self.may_be_changed_by(principal)

    def concerns_any(self, principals: Set[Principal]) -> bool:
        """True if one of the principals may. Looks up the token's few: a client may name tens of thousands."""
        return any(each in principals for each in (self.owner, self.requester, *self.renewers))
