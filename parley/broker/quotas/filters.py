"""Filters of DescribeClientQuotas (KIP-546): the entities that a client requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import IntEnum

from parley.broker.quotas.entities import (
    CLIENT_ID,
    DEFAULT,
    ENTITY_TYPES,
    IP,
    USER,
    QuotaEntity,
    StoredQuotas,
    canonical_address,
)
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError


class MatchType(IntEnum):
    """How a component of a filter matches a part of an entity. The numbers are the protocol's."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2
    """The part must exist, with any name or the default."""


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """The part types that an entity must have, each with the required name. None means any name, or the default.

    If ``strict``, an entity must have no other parts. A filter without components selects every entity; a strict one
    selects none.
    """

    names: Mapping[str, str | None] = field(default_factory=dict)
    strict: bool = False

    def select(self, stored: StoredQuotas) -> StoredQuotas:
        """Return the entities that the filter selects, with their quotas."""
        return {entity: quotas for entity, quotas in self.candidates(stored).items() if self.matches(entity)}

    def candidates(self, stored: StoredQuotas) -> StoredQuotas:
        """Return a superset of the selected entities, with their quotas: the named entity if the filter names one
        exactly, otherwise all entities."""
        if not self.strict or None in self.names.values():
            return stored
        named = QuotaEntity(self.names.get(USER), self.names.get(CLIENT_ID), self.names.get(IP))
        return {named: stored[named]} if named in stored else {}

    def matches(self, entity: QuotaEntity) -> bool:
        """Return True if the filter selects the entity."""
        parts = entity.parts()
        if self.strict and len(parts) != len(self.names):
            return False
        return all(kind in parts and name in (None, parts[kind]) for kind, name in self.names.items())


def filter_of(components: Iterable[tuple[str, int, str | None]], strict: bool) -> QuotaFilter:
    """Return the filter for components ``(entity type, match type, name)``.

    Raises KafkaError: INVALID_REQUEST for an invalid filter, or UNSUPPORTED_VERSION for an unknown entity type.
    """
    names: dict[str, str | None] = {}
    for kind, match_type, name in components:
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in names:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        names[kind] = _wanted(kind, match_type, name)
    if IP in names and len(names) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    return QuotaFilter(names, strict)


def _wanted(kind: str, match_type: int, name: str | None) -> str | None:
    """Return the name that a part must have; None means any name."""
    if match_type == MatchType.EXACT:
        if name is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if not name:
            raise _invalid(f"Empty {kind} not supported")
        return (canonical_address(name) or name) if kind == IP else name
    if match_type not in (MatchType.DEFAULT, MatchType.SPECIFIED):
        raise _invalid(f"Unknown match type {match_type}")
    if name is not None:
        what = MatchType(match_type).name
        raise _invalid(f"Request specified MATCH_TYPE_{what}, but also specified a match string.")
    return DEFAULT if match_type == MatchType.DEFAULT else None


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
