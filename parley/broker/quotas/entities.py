"""Entities that have quotas, and the keys of their quotas (KIP-55, 546, 599, 612).

An entity names a user, a client id, both, or an address. A name is None if the entity does not have this part, and
``DEFAULT`` if the entity covers every name without a separate quota. Real names are never empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from typing import Final

from parley.light_dataclasses import dataclass

DEFAULT: Final = ""
"""The name of a part that covers all names without a separate quota."""

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)
"""The types of an entity's parts, as named in the protocol."""


class QuotaKey(StrEnum):
    """The kinds of quotas."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Bytes per second that clients produce."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    """Bytes per second that clients fetch."""
    REQUEST_PERCENTAGE = "request_percentage"
    """The time that requests take, in percent of one thread's time."""
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    """Partitions created and deleted per second."""
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    """Connections per second from an address."""


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """A user, a client id, a user with a client id, or an address. At least one part is not None."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> dict[str, str]:
        """Return the names of the parts that the entity has, by type."""
        found = {USER: self.user, CLIENT_ID: self.client_id, IP: self.ip}
        return {kind: name for kind, name in found.items() if name is not None}

    def __str__(self) -> str:
        """Return a readable form, for example ``user 'alice', the default client-id``."""
        return ", ".join(f"{kind} '{name}'" if name else f"the default {kind}" for kind, name in self.parts().items())


StoredQuotas = Mapping[QuotaEntity, Mapping[str, float]]
"""All quotas of a cluster: for each entity, the values by key. Addresses are canonical; no entity has an
empty mapping."""


def canonical_address(text: str) -> str | None:
    """Return the canonical notation of an IP address; None if the text is not an IP address."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(address if mapped is None else mapped)
