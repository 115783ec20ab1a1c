"""The ids of the cluster and of this broker, on which the store and the data directories must agree.

The store contains the cluster's id (KIP-78), which the first broker writes once. If the store contains no id, the
broker starts a new cluster. The cluster takes over the id in the broker's data directories, or gets a new id if there
is none. A broker without ``broker.id`` keeps the id in its directories, or takes the next one above
``reserved.broker.max.id``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from parley.broker.controller.stored_metadata import CLUSTER
from parley.consensus.backend import ABSENT
from parley.consensus.errors import AlreadyExists, EmptyStore
from parley.consensus.recipes.keyvalue import KeyValue
from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID
from parley.storage.meta_properties import DirectoryIdentity
from parley.storage.partition_metadata import encode_id

BROKER_IDS = "broker-ids"


class NoBrokerId(ValueError):
    """Raised if ``broker.id`` is not set and ``broker.id.generation.enable`` is false, so that no id is generated."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The ids of a broker and its cluster. ``is_new`` is True if this start created the cluster."""

    cluster_id: str
    broker_id: int
    is_new: bool


def read_identities(directories: Sequence[Path]) -> list[DirectoryIdentity]:
    """Return the identities that the data directories contain. Unreadable directories are skipped. Blocks on the disk.

    Raises MalformedIdentity if a file is malformed.
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


async def identify(
    store: KeyValue,
    found: Sequence[DirectoryIdentity],
    *,
    broker_id: int,
    reserved_max: int,
    may_generate: bool,
    may_begin: bool,
    rng: Random,
) -> Identity:
    """Agree with the store on the cluster's id, and determine this broker's id.

    ``found`` contains the identities in the data directories. A negative ``broker_id`` means that no id is configured.
    If the directories contain none either, and ``may_generate`` is True, the store issues an id above ``reserved_max``.
    The directories are checked against the result when they are opened.

    Pass False as ``may_begin`` if the store has contained a cluster before: then no new cluster is started. Raises
    EmptyStore if the store has lost that cluster, NoBrokerId if there is no id, and CoordinationError.
    """
    if not may_begin and await store.get(CLUSTER) is None:
        raise EmptyStore("the coordination store has lost all of its data")
    kept = next((identity.cluster_id for identity in found if identity.cluster_id), None)
    cluster_id, is_new = await _cluster_id(store, kept or encode_id(UUID(int=rng.getrandbits(128), version=4)))
    if broker_id < 0:
        if found:
            broker_id = found[0].broker_id
        elif may_generate:
            broker_id = await store.next_id(BROKER_IDS, first=reserved_max + 1)
        else:
            raise NoBrokerId("broker.id is not set: set it, or allow ids to be generated (broker.id.generation.enable)")
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
