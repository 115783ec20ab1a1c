"""The quota that applies to a request, and the clients that share it.

Kafka's order of precedence: the first entity of this list that has a quota for the key applies.

=========================  ===========================
entity                     the rate is shared by
=========================  ===========================
user + client id           this user with this client id
user + default client id   this user with this client id
user                       all clients of the user
default user + client id   this user with this client id
both defaults              this user with this client id
default user               all clients of the user
client id                  all clients with the client id
default client id          all clients with the client id
=========================  ===========================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from parley.broker.quotas.entities import DEFAULT, QuotaEntity, QuotaKey, StoredQuotas, canonical_address
from parley.light_dataclasses import dataclass

CACHED_MAX: Final = 10_000
"""The maximum number of cached decisions. Clients choose their client ids, so there may be any number of them."""
CACHED_NAME_MAX: Final = 512
"""Decisions are cached if the user and the client id together are at most this many characters."""

_NAMED: Final = "named"
_LEVELS: Final = (
    (_NAMED, _NAMED),
    (_NAMED, DEFAULT),
    (_NAMED, None),
    (DEFAULT, _NAMED),
    (DEFAULT, DEFAULT),
    (DEFAULT, None),
    (None, _NAMED),
    (None, DEFAULT),
)
"""The kinds of entities as (user, client id), in order of precedence. None means that the entity lacks this part."""
NO_QUOTAS: Final[Mapping[str, float]] = {}


@dataclass(frozen=True, slots=True)
class Limit:
    """The quota of a request: a rate, and the user and client id that share it.

    ``rate`` is in the unit of the quota's ``QuotaKey``. ``shared_by`` is Kafka's pair of metric tags ``user`` and
    ``client-id``. If a tag is empty, the rate is shared regardless of it: ``("alice", "")`` means all clients of alice,
    ``("", "app")`` all clients with the id ``app``.
    """

    rate: float
    shared_by: tuple[str, str]


class ClientQuotas:
    """The quotas of one metadata image, with a cache of the quotas that apply to clients."""

    def __init__(self, stored: StoredQuotas) -> None:
        self._stored = stored
        self._keys = frozenset(key for quotas in stored.values() for key in quotas)
        present = {(each.user and _NAMED, each.client_id and _NAMED) for each in stored}
        self._levels = tuple(level for level in _LEVELS if level in present)
        self._found: dict[tuple[str, str, str], Limit | None] = {}
        self.limits_clients = bool(self._keys - {QuotaKey.CONNECTION_CREATION_RATE})
        """False if only addresses have quotas."""

    def limit(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        """Return the quota that applies to a user (the principal's name) and client id; None if there is none."""
        if key not in self._keys:
            return None
        if len(user) + len(client_id) > CACHED_NAME_MAX:
            return self._limit(key, user, client_id)
        cache_key = (key, user, client_id)
        try:
            return self._found[cache_key]
        except KeyError:
            if len(self._found) >= CACHED_MAX:
                self._found.clear()
            found = self._found[cache_key] = self._limit(key, user, client_id)
            return found

    def connection_rate(self, ip: str) -> float | None:
        """Return how many connections per second an address may open; None if there is no limit."""
        if QuotaKey.CONNECTION_CREATION_RATE not in self._keys:
            return None
        for name in (canonical_address(ip) or ip, DEFAULT):
            quotas = self._stored.get(QuotaEntity(ip=name))
            if quotas is not None:
                return quotas.get(QuotaKey.CONNECTION_CREATION_RATE)
        return None

    def _limit(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        for of_user, of_client in self._levels:
            entity = QuotaEntity(
                user if of_user == _NAMED else of_user, client_id if of_client == _NAMED else of_client
            )
            rate = self._stored.get(entity, NO_QUOTAS).get(key)
            if rate is not None:
                return Limit(rate, ("" if of_user is None else user, "" if of_client is None else client_id))
        return None
