"""``parley configs`` for users, client ids and addresses: their quotas, and the SCRAM credentials of users.

They are shown and changed through a broker, or in the coordination store before the first broker starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from parley.protocol.security.scram import HASHES
from parley.tools.cli import client_quotas, scram_users
from parley.tools.cli.cluster_client import check, on_cluster
from parley.tools.cli.host_names import address_of
from parley.tools.cli.invocation import CommandError, sentence
from parley.tools.cli.output import Format, print_data

if TYPE_CHECKING:
    from parley.consensus.backend import Backend
    from parley.protocol.client import Client
    from parley.tools.cli.client_quotas import Named, Quotas
    from parley.tools.cli.scram_users import Users

T = TypeVar("T")

TYPES: Final = {"user": "user", "client": "client-id", "ip": "ip"}
"""The protocol's word for each type of entity that has quotas."""
_KINDS: Final = {type_: kind for kind, type_ in TYPES.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """The target of a command: a cluster, or the store that a URL or a broker's properties file names."""

    bootstrap_server: str
    command_config: Path | None
    coordination_url: str | None
    config: Path | None

    @property
    def is_store(self) -> bool:
        return self.coordination_url is not None or self.config is not None

    def on_cluster(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run ``work`` with a client of the cluster, and return its result. Raises ``CommandError`` if a setting is
        invalid or a request fails."""
        return on_cluster(self.bootstrap_server, self.command_config, work)

    def on_store(self, work: Callable[[Backend], Awaitable[T]]) -> T:
        """Run ``work`` on the coordination store itself, and return its result. Raises ``CommandError`` if the store
        cannot be used, or a change is not possible."""
        from parley.protocol.errors import KafkaError
        from parley.tools.cli.store_client import run_on_store, store_address
        from parley.tools.coordination.idle_store import NotChanged

        address, backend_at = store_address(self.coordination_url, self.config)

        async def opened() -> T:
            backend = await backend_at(address)
            try:
                await backend.open()
                return await work(backend)
            finally:
                await backend.close()

        try:
            return run_on_store(opened)
        except NotChanged as reason:
            raise CommandError(f"{reason}.") from reason
        except KafkaError as error:
            raise CommandError(f"{error.message or error.code.message}") from error


def alter(
    place: Place, parts: Sequence[tuple[str, str | None]], added: Mapping[str, str], removed: Sequence[str]
) -> None:
    """Set and remove quotas of an entity, or SCRAM credentials of a user. An empty name is the default.

    ``parts`` are kinds and names. Raises ``CommandError`` if the keys do not belong to the entity, or the change fails.
    """
    credentials = [key for key in (*added, *removed) if key in HASHES]
    _check_keys([kind for kind, _ in parts], (*added, *removed), has_credentials=bool(credentials))
    if not credentials:
        _alter_quotas(place, entity_of(parts), client_quotas.values(added, removed))
    elif len(credentials) < len(added) + len(removed):
        raise CommandError("Quotas and SCRAM credentials of a user cannot be changed together: use two commands.")
    else:
        ((_, user),) = parts
        if not user:
            raise CommandError("A default has no SCRAM credentials: name the user with --entity-name.")
        _alter_user(place, user, added, removed)


def entity_of(parts: Sequence[tuple[str, str | None]]) -> Named:
    """Return an entity in the protocol's terms, with a host's name replaced by its address."""
    return tuple((TYPES[kind], _address(name) if kind == "ip" and name else name) for kind, name in parts)


def _address(name: str) -> str:
    """Return the address of a host, or the name itself if it has no address; the broker then rejects the name."""
    from parley.broker.quotas.entities import canonical_address

    return name if canonical_address(name) is not None else address_of(name) or name


def _check_keys(kinds: Sequence[str], keys: Sequence[str], *, has_credentials: bool) -> None:
    from parley.broker.quotas.validation import ADDRESS_KEYS, CLIENT_KEYS

    known: tuple[str, ...] = ADDRESS_KEYS if kinds == ["ip"] else CLIENT_KEYS
    if kinds == ["user"]:
        known += tuple(HASHES)
    for key in keys:
        if key not in known:
            raise CommandError(f"A {' with a '.join(kinds)} has no setting {key}. Available: {', '.join(known)}.")


def _alter_quotas(place: Place, entity: Named, quotas: Mapping[str, float | None]) -> None:
    if place.is_store:
        place.on_store(lambda backend: _alter_quotas_in_store(backend, entity, quotas))
    else:
        place.on_cluster(lambda client: client_quotas.alter(client, entity, quotas))


async def _alter_quotas_in_store(backend: Backend, entity: Named, quotas: Mapping[str, float | None]) -> None:
    from parley.broker.controller.client_quotas import QuotaAlteration, alter_client_quotas
    from parley.tools.coordination.idle_store import change_in_store

    client_quotas.check_present(await _quotas_in_store(backend, entity), quotas)
    wanted = QuotaAlteration(client_quotas.defaults_unnamed(entity), tuple(quotas.items()))
    for error in await change_in_store(backend, partial(alter_client_quotas, wanted=[wanted])):
        if error is not None:
            check(error.code, error.message, doing="The quotas were not changed")


def _alter_user(place: Place, user: str, added: Mapping[str, str], removed: Sequence[str]) -> None:
    wanted = scram_users.alterations(user, added, removed)
    if place.is_store:
        place.on_store(lambda backend: scram_users.alter_in_store(backend, wanted))
    else:
        place.on_cluster(lambda client: scram_users.alter(client, wanted))


def describe(place: Place, parts: Sequence[tuple[str, str | None]], *, output_format: Format | None) -> None:
    """Print quotas, and the SCRAM credentials of users unless clients are requested. A name of None selects every name.

    Raises ``CommandError`` if a named entity has neither.
    """
    entity = entity_of(parts)
    has_credentials = [kind for kind, _ in parts] == ["user"] and parts[0][1] != ""
    quotas = _quotas(place, entity)
    users = _users(place, parts[0][1]) if has_credentials else {}
    if not quotas and not users and all(name is not None for _, name in parts):
        nothing = "neither quotas nor SCRAM credentials" if has_credentials else "no quotas"
        raise CommandError(f"There are {nothing} of {client_quotas.text_of(entity)}.")
    if output_format:
        print_data([*client_quotas.as_data(quotas, _KINDS), *scram_users.as_data(users)], output_format)
        return
    for text in (*client_quotas.lines(quotas), *scram_users.lines(users)):
        print(text)


def _quotas(place: Place, entity: Named) -> Quotas:
    if place.is_store:
        return place.on_store(lambda backend: _quotas_in_store(backend, entity))
    return place.on_cluster(lambda client: client_quotas.describe(client, entity))


def _users(place: Place, user: str | None) -> Users:
    if place.is_store:
        return place.on_store(lambda backend: scram_users.describe_in_store(backend, user))
    return place.on_cluster(lambda client: scram_users.describe(client, user))


async def _quotas_in_store(backend: Backend, entity: Named) -> Quotas:
    from parley.broker.quotas.filters import filter_of
    from parley.protocol.errors import KafkaError
    from parley.tools.coordination.idle_store import image_in_store

    try:
        wanted = filter_of(client_quotas.components(entity), strict=True)
    except KafkaError as error:
        raise CommandError(sentence(error.message)) from error
    image = await image_in_store(backend)
    return client_quotas.in_order(
        (client_quotas.defaults_unnamed(tuple(each.parts().items())), quotas)
        for each, quotas in wanted.select(image.client_quotas).items()
    )
