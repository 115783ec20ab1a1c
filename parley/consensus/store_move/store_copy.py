"""The persistent content of a store: reading it, copying it to another store, and comparing two stores.

Keys bound to sessions are not copied, because their owners create them again in the new store. The store's record
(``store_record.py``) is not copied either. Values are copied as stored, including nonces, so that a writer that waits
for the outcome of a write can still find it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parley.consensus.backend import Backend, Capabilities, Check, Delete, Entry, Op, Put
from parley.consensus.errors import TooLarge
from parley.consensus.store_move.store_record import RECORD_FOLDER

_PAGE = 1000

Content = dict[str, bytes]
"""The stored values by key."""


async def everything(backend: Backend) -> list[Entry]:
    """Return all entries of a store. They are read page by page, so they show one consistent state only if there are no
    writes in the meantime."""
    found: list[Entry] = []
    after: str | None = None
    while True:
        page = await backend.list("", limit=_PAGE, after=after)
        found += page.entries
        if (after := page.next_after) is None:
            return found


async def content(backend: Backend) -> Content:
    """Return the content that a move must copy to another store."""
    entries = await everything(backend)
    return {each.key: each.value for each in entries if each.session is None and not each.key.startswith(RECORD_FOLDER)}


async def leftovers(backend: Backend) -> list[str]:
    """Return all keys except those of the store's record, whether bound to sessions or not."""
    return [each.key for each in await everything(backend) if not each.key.startswith(RECORD_FOLDER)]


def difference(has: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> list[Op]:
    """Return the operations that turn the content ``has`` into ``wanted``."""
    puts: list[Op] = [Put(key, value) for key, value in wanted.items() if has.get(key) != value]
    return [*puts, *(Delete(key) for key in has if key not in wanted)]


def too_large(limits: Capabilities, wanted: Mapping[str, bytes]) -> TooLarge | None:
    """Return the error for an entry that the store cannot accept in a transaction with one check, or None if it accepts
    all entries."""
    for key, value in wanted.items():
        if len(key) > limits.key_bytes_max:
            return TooLarge(f"the key {key}", len(key), limits.key_bytes_max)
        if len(value) > limits.value_bytes_max:
            return TooLarge(f"the value of {key}", len(value), limits.value_bytes_max)
        if len(key) + len(value) > _room(limits):
            return TooLarge(f"a transaction with {key}", len(key) + len(value), _room(limits))
    return None


async def carry_out(backend: Backend, ops: Sequence[Op], check: Check) -> None:
    """Apply operations in as few transactions as the store's limits allow, each with this check.

    Values are written unchanged. Raises the same errors as ``Backend.txn``. After Retriable, repeat all operations.
    """
    for part in backend.capabilities.parts(ops):
        await backend.txn([check], part)


def _room(limits: Capabilities) -> int:
    return limits.txn_bytes_max - limits.key_bytes_max
