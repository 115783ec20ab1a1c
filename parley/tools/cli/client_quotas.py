"""Client quotas for ``parley configs``, shown and changed as in kafka-configs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from parley.tools.cli.cluster_client import check
from parley.tools.cli.invocation import CommandError

if TYPE_CHECKING:
    from parley.protocol.client import Client

Named = tuple[tuple[str, str | None], ...]
"""An entity as pairs of a type (the protocol's word) and a name. In requests, an empty name means the default, and None
means every name."""

_TYPES: Final = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2

Quotas = Mapping[Named, Mapping[str, float]]
"""Quotas by entity and key. The name of a default is None."""


def values(added: Mapping[str, str], removed: Sequence[str]) -> dict[str, float | None]:
    """Return the new value of each quota, or None to remove it. Raises ``CommandError`` for a value that is not a
    number."""
    found: dict[str, float | None] = dict.fromkeys(removed)
    for key, text in added.items():
        try:
            found[key] = float(text)
        except ValueError as error:
            raise CommandError(
                f"Cannot parse quota configuration value for {key}: {text}. It must be a number."
            ) from error
    return found


def components(parts: Named) -> list[tuple[str, int, str | None]]:
    """Return the filter that matches entities with exactly these parts, as a type, a match type and a name for each. A
    name of None matches every name, and an empty name matches the default."""
    return [
        (kind, _SPECIFIED, None) if name is None else (kind, _EXACT, name) if name else (kind, _DEFAULT, None)
        for kind, name in parts
    ]


def defaults_unnamed(parts: Named) -> Named:
    """Replace the empty name, which means the default, with None, as in the protocol."""
    return tuple((kind, name or None) for kind, name in parts)


async def alter(client: Client, parts: Named, quotas: Mapping[str, float | None]) -> None:
    """Set the quotas of one entity through a broker, and remove those whose value is None.

    Raises ``CommandError`` if a quota to be removed does not exist, or if the cluster rejects the request.
    """
    from parley.protocol.messages.quotas import AlterClientQuotasRequest as Request

    check_present(await describe(client, parts), quotas)
    entry = Request.EntryData(
        entity=[Request.EntityData(entity_type=kind, entity_name=name) for kind, name in defaults_unnamed(parts)],
        ops=[
            Request.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in quotas.items()
        ],
    )
    answer = await client.send(Request(entries=[entry]))
    for result in answer.entries:
        check(result.error_code, result.error_message, doing="The quotas were not changed")


def check_present(found: Quotas, quotas: Mapping[str, float | None]) -> None:
    """Raise ``CommandError`` if a quota to be removed (its value is None) is not among those found, as kafka-configs
    does."""
    present = {key for each in found.values() for key in each}
    missing = [key for key, value in quotas.items() if value is None and key not in present]
    if missing:
        raise CommandError(f"Invalid config(s): {','.join(missing)}. The entity has no such quota.")


async def describe(client: Client, parts: Named) -> Quotas:
    """Return the quotas of the entities with exactly these parts.

    Raises ``CommandError`` if the cluster rejects the request.
    """
    from parley.protocol.messages.quotas import DescribeClientQuotasRequest as Request

    wanted = [
        Request.ComponentData(entity_type=kind, match_type=match_type, match=name)
        for kind, match_type, name in components(parts)
    ]
    answer = await client.send(Request(components=wanted, strict=True))
    check(answer.error_code, answer.error_message, doing="The quotas cannot be shown")
    return in_order(
        (_ordered(entry.entity), {value.key: value.value for value in entry.values}) for entry in answer.entries or ()
    )


def _ordered(entity: Iterable[Any]) -> Named:
    """Return the parts of an entity with the user first. Kafka's brokers send them in any order."""
    return tuple(sorted(((part.entity_type, part.entity_name) for part in entity), key=lambda part: part[0] != "user"))


def in_order(found: Iterable[tuple[Named, Mapping[str, float]]]) -> Quotas:
    """Return quotas ordered by entity and key."""
    ordered = sorted(found, key=lambda item: [(kind, name or "") for kind, name in item[0]])
    return {parts: dict(sorted(quotas.items())) for parts, quotas in ordered}


def text_of(parts: Named) -> str:
    """Format an entity as kafka-configs does."""
    return ", ".join(
        f"{_TYPES.get(kind, kind)} '{name}'" if name else f"the default {_TYPES.get(kind, kind)}"
        for kind, name in parts
    )


def lines(quotas: Quotas) -> list[str]:
    """Format quotas as kafka-configs does."""
    return [
        f"Quota configs for {text_of(parts)} are " + ", ".join(f"{key}={_number(value)}" for key, value in each.items())
        for parts, each in quotas.items()
    ]


def _number(value: float) -> str:
    return f"{value:.1f}" if value.is_integer() else repr(value)


def as_data(quotas: Quotas, kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return quotas as JSON data, in the same shape as the settings of other entities. ``kinds`` maps the protocol's
    entity types to those of ``--entity-type``."""
    found = []
    for parts, each in quotas.items():
        (kind, name), *clients = parts
        found.append(
            {
                "type": kinds[kind],
                "name": name,
                **({"clientId": clients[0][1]} if clients else {}),
                "configs": [_setting(key, value) for key, value in each.items()],
            }
        )
    return found


def _setting(key: str, value: float) -> dict[str, Any]:
    return {
        "name": key,
        "value": _number(value),
        "readOnly": False,
        "sensitive": False,
        "source": "CLIENT_QUOTA",
        "synonyms": [],
    }
