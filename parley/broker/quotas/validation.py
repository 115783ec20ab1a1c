"""Validation of quota entities and quotas: Kafka's rules, and Parley's own bounds.

All errors are INVALID_REQUEST, most of them with Kafka's text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from parley.broker.quotas.entities import (
    CLIENT_ID,
    DEFAULT,
    ENTITY_TYPES,
    IP,
    USER,
    QuotaEntity,
    QuotaKey,
    canonical_address,
)
from parley.protocol.errors import ErrorCode, KafkaError

NAME_MAX: Final = 1024
"""The longest name of a user or client id that can have a quota, in characters."""

CLIENT_KEYS: Final = (
    QuotaKey.PRODUCER_BYTE_RATE,
    QuotaKey.CONSUMER_BYTE_RATE,
    QuotaKey.REQUEST_PERCENTAGE,
    QuotaKey.CONTROLLER_MUTATION_RATE,
)
"""The quota keys that apply to users and client ids."""

ADDRESS_KEYS: Final = (QuotaKey.CONNECTION_CREATION_RATE,)
"""The quota keys that apply to addresses."""

_INTEGERS: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: (2.0**63, "a LONG"),
    QuotaKey.CONSUMER_BYTE_RATE: (2.0**63, "a LONG"),
    QuotaKey.CONNECTION_CREATION_RATE: (2.0**31 - 1, "an INT"),
}
"""The keys with integer values: the largest value as a double, and its type in Kafka."""
_FRACTION_MAX: Final = 1e-6
"""The largest fractional part that the value of an integer key may have: the protocol transmits doubles."""


def valid_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity that consists of the given types and names; None is the default name.

    Addresses are normalized. Raises KafkaError (INVALID_REQUEST) if the entity is invalid.
    """
    names: dict[str, str] = {}
    for kind, name in parts:
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind[:NAME_MAX]}")
        if kind in names:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
        if name is not None and len(name) > NAME_MAX:
            raise _invalid(f"The {kind} name is {len(name)} characters long; quotas allow at most {NAME_MAX}.")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise _invalid("Invalid empty client quota entity")
    if IP in names:
        if len(names) > 1:
            raise _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
        return QuotaEntity(ip=_address(names[IP]))
    return QuotaEntity(user=names.get(USER), client_id=names.get(CLIENT_ID))


def _address(name: str) -> str:
    address = canonical_address(name) if name else DEFAULT
    if address is None:
        raise _invalid(f"{name} is not a valid IP. Brokers do not resolve host names: send the address of the host.")
    return address


def check_quota(entity: QuotaEntity, key: str, value: float) -> None:
    """Raise KafkaError (INVALID_REQUEST) if an entity cannot have a quota with this key, or with this value."""
    keys = CLIENT_KEYS if entity.ip is None else ADDRESS_KEYS
    if key not in keys:
        raise _invalid(f"Invalid configuration key {key[:NAME_MAX]}. {entity} may have: {', '.join(keys)}.")
    if value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if not math.isfinite(value):
        raise _invalid(f"Quota {key} must be a finite number. To lift the limit, remove the quota.")
    if key in _INTEGERS:
        largest, type_ = _INTEGERS[QuotaKey(key)]
        if value > largest:
            raise _invalid(f"Proposed value for {key} is too large for {type_}.")
        if value % 1 > _FRACTION_MAX:
            raise _invalid(f"{key} cannot be a fractional value.")
        if value < 1:
            raise _invalid(f"Quota {key} must be at least 1")


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
