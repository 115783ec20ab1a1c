"""Second phase of a start: open the coordination store, and settle which broker of which cluster this is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from parley.broker.membership.identity import Identity, identify, read_identities, read_stores, refusal, remember_store
from parley.broker.startup.surroundings import Surroundings
from parley.broker.store_move.participant import Moves
from parley.consensus.errors import WrongStore
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.registry import backend_factory, from_kafka_config
from parley.consensus.store_lookup import find_store


@dataclass(frozen=True, slots=True)
class Joined:
    """This broker's identity, and the store in charge of its cluster."""

    moves: Moves
    """Holds the store that is in charge, and follows the cluster when it moves to another one."""
    identity: Identity


async def join_store(surroundings: Surroundings) -> Joined:
    """Open the store and settle the identity.

    Raises CoordinationError if the store cannot be used, and an error of ``parley.broker.membership.identity`` if the
    data directories belong to another broker, cluster or store.
    """
    surroundings.health.starting("opening the coordination store")
    config, rng = surroundings.config, surroundings.rng
    directories = list(map(Path, config.data_dirs))
    loop = asyncio.get_running_loop()
    known = await loop.run_in_executor(None, read_stores, directories)
    url, open_url = from_kafka_config(config.given, config.data_dirs[0]), backend_factory(config.given)
    try:
        store = await find_store(url, open_url, known=known, rng=rng)
    except WrongStore as wrong:
        raise refusal(wrong, directories) from wrong
    found = await loop.run_in_executor(None, read_identities, directories)

    async def remember(identity: str) -> None:
        await remember_in(directories, identity)

    moves = Moves(store, open_url, remember, rng)
    surroundings.undo.push_async_callback(moves.close)
    identity = await identify(
        KeyValue(store, rng),
        found,
        broker_id=config.broker_id,
        reserved_max=config.reserved_broker_max_id,
        may_generate=config.broker_id_generation_enable,
        rng=rng,
    )
    return Joined(moves, identity)


async def remember_in(directories: list[Path], store: str) -> None:
    """Note in every data directory that the store with the identity ``store`` knows its topics."""
    await asyncio.get_running_loop().run_in_executor(None, remember_store, directories, store)
