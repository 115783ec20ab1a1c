"""The second phase of startup: opens the coordination store, and identifies this broker and its cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

from parley.broker.membership.identity import Identity, identify, read_identities
from parley.broker.membership.known_stores import read_known_stores, record_store, with_advice
from parley.broker.membership.measured_store import StoreCounts, measured
from parley.broker.membership.remembered_epochs import EpochFile, read_remembered_epochs
from parley.broker.startup.environment import Environment
from parley.broker.store_move.driver import StoreMoveDriver
from parley.broker.store_move.participant import StoreMoveParticipant
from parley.consensus.errors import EmptyStore, WrongStore
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.registry import backend_factory, configured_url
from parley.consensus.store_move.store_lookup import find_store
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Joined:
    """This broker's identity, and the store that its cluster uses."""

    store_move: StoreMoveParticipant
    """Holds the store that the cluster uses, and follows the cluster when it moves to another store."""
    store_move_driver: StoreMoveDriver
    """Moves the cluster to another store while this broker is the controller."""
    epochs: EpochFile
    """The highest epochs and ids that this broker has seen."""
    identity: Identity
    counts: StoreCounts
    """The measurements that this broker takes of its store."""


async def join_store(environment: Environment) -> Joined:
    """Open the store, and determine the identity of this broker and its cluster.

    Raises CoordinationError if the store cannot be used, and an error of ``parley.broker.membership.identity`` if the
    data directories belong to another broker, cluster or store.
    """
    environment.health.starting("opening the coordination store")
    config, rng = environment.config, environment.rng
    directories = list(map(Path, config.data_dirs))
    loop = asyncio.get_running_loop()
    known = await loop.run_in_executor(None, read_known_stores, directories)
    url, counts = configured_url(config.given, config.data_dirs[0]), StoreCounts(environment.clock.monotonic)
    backend_at = measured(backend_factory(config.given), counts)
    try:
        store = await find_store(url, backend_at, known=known, rng=rng)
    except WrongStore as wrong:
        raise with_advice(wrong, directories) from wrong
    found = await loop.run_in_executor(None, read_identities, directories)

    async def remember(identity: str) -> None:
        await remember_in(directories, identity)

    store_move = StoreMoveParticipant(store, backend_at, remember, rng)
    environment.undo.push_async_callback(store_move.close)
    epochs = EpochFile(directories, await loop.run_in_executor(None, read_remembered_epochs, directories))
    environment.undo.push_async_callback(epochs.close)
    try:
        identity = await identify(
            KeyValue(store, rng),
            found,
            broker_id=config.broker_id,
            reserved_max=config.reserved_broker_max_id,
            may_generate=config.broker_id_generation_enable,
            may_begin=not known,
            rng=rng,
        )
    except EmptyStore as empty:
        raise with_advice(empty, directories) from empty
    return Joined(store_move, StoreMoveDriver(store_move, backend_at, rng), epochs, identity, counts)


async def remember_in(directories: list[Path], store: str) -> None:
    """Record in every data directory that its topics are known to the store with the identity ``store``."""
    await asyncio.get_running_loop().run_in_executor(None, record_store, directories, store)
