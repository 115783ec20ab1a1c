"""Read and change the metadata in a store that no broker uses, to create users and quotas before the first broker
starts.

The controller of a running cluster keeps the metadata in memory and would not notice a change to the store. Therefore
no broker may have a session in the store.
"""

from __future__ import annotations

import secrets
from typing import TypeVar

from parley.broker.controller.decision import Decide
from parley.broker.controller.stored_metadata import PREFIXES, read_image, writes_for
from parley.broker.metadata.image import MetadataImage
from parley.consensus.backend import Backend, Delete, Put
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.store_move.store_copy import everything
from parley.consensus.store_move.store_record import IN_CHARGE_STATES, read_record

T = TypeVar("T")


class NotChanged(Exception):
    """Raised if the metadata of this store cannot be read or changed here. The text contains the reason."""


async def change_in_store(backend: Backend, decide: Decide[T]) -> T:
    """Apply the changes that ``decide`` derives from the stored metadata, in one transaction. Returns the decision's
    result.

    Raises NotChanged if brokers use the store or if the cluster has moved to another store. Also raises the store's
    errors and any error of ``decide``.
    """
    await _check_idle(backend)
    store = KeyValue(backend, secrets.SystemRandom())
    image = await _image(store)
    decision = decide(image)
    writes = writes_for(decision.changes, image.with_changes(decision.changes), image)
    if writes:
        await store.txn((), [Delete(key) if value is None else Put(key, value) for key, value in writes.items()])
    return decision.result


async def image_in_store(backend: Backend) -> MetadataImage:
    """Return the metadata that the store contains.

    Raises NotChanged if the cluster has moved to another store, and the store's errors.
    """
    await _check_in_charge(backend)
    return await _image(KeyValue(backend))


async def _image(store: KeyValue) -> MetadataImage:
    stored = {entry.key: entry.value for prefix in PREFIXES async for entry in store.entries(prefix)}
    return read_image("", stored)


async def _check_in_charge(backend: Backend) -> None:
    record, _ = await read_record(backend)
    if record.state not in IN_CHARGE_STATES:
        elsewhere = f": use {record.other.url}" if record.other is not None else ""
        raise NotChanged(f"the cluster has moved away from this store{elsewhere}")


async def _check_idle(backend: Backend) -> None:
    await _check_in_charge(backend)
    if any(entry.session for entry in await everything(backend)):
        raise NotChanged(
            "brokers use this store; change the cluster's users and quotas through a broker, with --bootstrap-server"
        )
