"""Which cluster this is, and which broker: agreed on with the store and with what the data directories say.

The cluster's id (KIP-78) lives in the store, written once by the first broker. When the store has none, the cluster
begins: with the id in the data directories if they come from elsewhere, else with a new one. A broker without
``broker.id`` keeps the id its directories name, or takes the next one above ``reserved.broker.max.id``.

Each data directory remembers which store knows its topics. A store that was wiped or replaced is refused at the start:
it would look like a cluster without topics, and their logs like leftovers. One that took over from it, in a move that
this broker slept through, is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import UUID

from parley.broker.controller.stored_metadata import CLUSTER
from parley.consensus.backend import ABSENT
from parley.consensus.errors import AlreadyExists, WrongStore
from parley.consensus.recipes.keyvalue import KeyValue
from parley.storage.checkpoints import write_atomically
from parley.storage.meta_properties import DirectoryIdentity
from parley.storage.partition_metadata import encode_id

BROKER_IDS = "broker-ids"
STORE_FILE = "coordination.identity"
"""In each data directory: the identity of the coordination store that knows its topics, and of those before it."""
STORES_KEPT = 100


class NoBrokerId(ValueError):
    """``broker.id`` is missing and must not be generated."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a broker is. ``is_new`` says that the cluster began with this very start."""

    cluster_id: str
    broker_id: int
    is_new: bool


def read_identities(directories: Sequence[Path]) -> list[DirectoryIdentity]:
    """What the data directories say of their owner; unreadable ones say nothing. Blocks for the disk.

    Raises MalformedIdentity.
    """
    found = []
    for directory in directories:
        try:
            identity = DirectoryIdentity.read(directory)
        except OSError:
            continue
        if identity is not None:
            found.append(identity)
    return found


def read_stores(directories: Sequence[Path]) -> list[str]:
    """The stores that these directories have belonged to, latest first; none where no broker has been.

    Blocks for the disk.
    """
    longest: list[str] = []
    for directory in directories:
        try:
            found = (directory / STORE_FILE).read_text().split()
        except OSError:
            continue
        longest = max(longest, found, key=len)  # a directory that was away during a move knows less
    return longest


def remember_store(directories: Sequence[Path], identity: str) -> None:
    """Note in each directory that works which store knows its topics now. Blocks for the disk."""
    stores = [identity, *(each for each in read_stores(directories) if each != identity)][:STORES_KEPT]
    text = "".join(f"{each}\n" for each in stores).encode()
    for directory in directories:
        path = directory / STORE_FILE
        try:
            if not path.exists() or path.read_bytes() != text:
                write_atomically(path, text)
        except OSError:
            continue  # the directory's own troubles are told where its logs are opened


def refusal(wrong: WrongStore, directories: Sequence[Path]) -> WrongStore:
    """The same error with what a person can do about it."""
    files = " and ".join(str(directory / STORE_FILE) for directory in directories)
    return WrongStore(
        f"{wrong}. The data belongs to another coordination store, or this one has lost its contents: restore the "
        "store from a backup, or correct coordination.url. To begin a new cluster with the topics found on disk, "
        f"remove {files}"
    )


async def identify(
    store: KeyValue,
    found: Sequence[DirectoryIdentity],
    *,
    broker_id: int,
    reserved_max: int,
    may_generate: bool,
    rng: Random,
) -> Identity:
    """Agree with the store on the cluster's id, and settle the broker's; ``broker_id`` < 0 means none is configured.

    The directories are checked against the answer when they are opened. Raises :class:`NoBrokerId`,
    CoordinationError.
    """
    kept = next((identity.cluster_id for identity in found if identity.cluster_id), None)
    cluster_id, is_new = await _cluster_id(store, kept or encode_id(UUID(int=rng.getrandbits(128), version=4)))
    if broker_id < 0:
        if found:
            broker_id = found[0].broker_id
        elif may_generate:
            broker_id = await store.next_id(BROKER_IDS, first=reserved_max + 1)
        else:
            raise NoBrokerId("set broker.id, or allow ids to be generated (broker.id.generation.enable)")
    return Identity(cluster_id, broker_id, is_new)


async def _cluster_id(store: KeyValue, proposal: str) -> tuple[str, bool]:
    while True:
        entry = await store.get(CLUSTER)
        if entry is not None:
            cluster_id: str = json.loads(entry.value)["cluster_id"]
            return cluster_id, False
        try:
            await store.put(CLUSTER, json.dumps({"cluster_id": proposal}).encode(), expect=ABSENT)
        except AlreadyExists:
            continue
        return proposal, True
