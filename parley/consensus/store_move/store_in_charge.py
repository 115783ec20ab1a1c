"""A backend that works only while its store is in charge of the cluster (``parley.consensus.store_move.store_record``).

Every transaction also checks the store's record. While the store is frozen, writers wait. Once the cluster has moved to
another store, transactions raise ``Moved``. Reads and watches are passed on to the store without a check, so they keep
showing its last state.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self

from parley.consensus.backend import (
    LINEARIZABLE,
    At,
    Backend,
    Capabilities,
    Check,
    Entry,
    Op,
    Page,
    Read,
    Revision,
    Session,
    TxnResult,
    Watch,
)
from parley.consensus.errors import AlreadyExists, Fenced, Moved
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import Writer
from parley.consensus.registry import create_backend
from parley.consensus.store_move.store_record import (
    DRIVER_KEY,
    IN_CHARGE_STATES,
    NO_RECORD,
    RECORD_FOLDER,
    RECORD_KEY,
    StoredRecord,
    StoreEvent,
    StoreLocation,
    StoreRecord,
    StoreState,
    abandon_move,
    write_record,
)


class StoreInCharge(Backend):
    """A store that can be written only while it is in charge.

    :param backend: the store; may be open already.
    :param url: the address of the store.
    :param term: the term of the store's record, if the caller has seen it; otherwise the first term seen is used.
    """

    def __init__(
        self, backend: Backend, url: str, rng: random.Random | None = None, *, term: int | None = None
    ) -> None:
        self.backend = backend
        self.url = url
        self._writer = Writer(backend, rng)
        self._revision: Revision | None = None
        self._term = term
        own = backend.capabilities
        self._capabilities = replace(
            own, txn_ops_max=own.txn_ops_max - 1, txn_bytes_max=own.txn_bytes_max - len(RECORD_KEY)
        )

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        return cls(create_backend(url, **options), url)

    @property
    def capabilities(self) -> Capabilities:
        """The limits of the store, reduced by the check that is added to each transaction."""
        return self._capabilities

    @property
    def identity(self) -> str:
        return self.backend.identity

    @property
    def term(self) -> int | None:
        """The term of the store's record, or None before this client has seen a record of a store in charge."""
        return self._term

    @property
    def location(self) -> StoreLocation:
        """The address and identity by which other brokers find the store."""
        return StoreLocation(self.url, self.identity)

    async def open(self, *, expect_identity: str | None = None) -> None:
        """Open the store, and wait while it is frozen.

        Raises the errors of ``Backend.open``, and Moved if the store is not in charge. After an error, the store is
        closed.
        """
        await self.backend.open(expect_identity=expect_identity)
        try:
            await self.refresh()
        except BaseException:
            await self.backend.close()
            raise

    async def close(self) -> None:
        await self.backend.close()

    async def abandon(self) -> None:
        await self.backend.abandon()

    async def open_session(self, ttl_ms: int) -> Session:
        return await self.backend.open_session(ttl_ms)

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        return await self.backend.get(key, read=read)

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        return await self.backend.list(prefix, limit=limit, after=after, read=read)

    def watch(self, prefix: str) -> Watch:
        return self.backend.watch(prefix)

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        """Apply a transaction. Waits while the store is frozen.

        Raises Moved if the store is no longer in charge, and the errors of ``Backend.txn``.

        A transaction that the store rejected because the record had changed was not applied, and is sent again.
        """
        self._capabilities.admit(checks, ops)
        while True:
            if self._revision is None:
                await self.refresh()
            seen = self._revision
            assert seen is not None
            try:
                return await self.backend.txn([Check(RECORD_KEY, At(seen), fences=True), *checks], ops)
            except Fenced as fenced:
                if fenced.key != RECORD_KEY:
                    raise
                if self._revision == seen:
                    self._revision = None

    async def refresh(self) -> StoreRecord:
        """Read the record again, wait while the store is frozen, and return the record. Creates a missing record.

        Raises Moved if this store is not in charge, or has not been in charge continuously since this client first saw
        it.
        """
        while True:
            entry = await self.backend.get(RECORD_KEY)
            if entry is None:
                await self._begin()
                continue
            record = StoreRecord.from_entry(entry)
            self.require(record)
            if record.state is not StoreState.FROZEN:
                self._revision = entry.revision
                return record
            await self._wait_until_unfrozen(StoredRecord(record, entry.revision))

    def require(self, record: StoreRecord) -> None:
        """Raise Moved unless this record shows that the store is in charge, and has been since the first record
        seen."""
        if self._term is None and record.state in IN_CHARGE_STATES:
            self._term = record.term
        if record.state not in IN_CHARGE_STATES or record.term != self._term:
            raise Moved(f"the store {self.identity} is no longer in charge ({record.state.value})")

    async def _begin(self) -> None:
        with suppress(AlreadyExists):  # another broker was faster
            await write_record(self._writer, NO_RECORD, StoreEvent.BEGIN, StoreRecord())

    async def _wait_until_unfrozen(self, frozen: StoredRecord) -> None:
        """Wait until the record changes. Abandon the move if the session of its driver has ended."""
        view = View()
        async with self.backend.watch(RECORD_FOLDER) as watch:
            async for event in watch:
                view.apply(event)
                entry = view.entries.get(RECORD_KEY)
                if entry is None or entry.revision != frozen.revision:
                    return
                if DRIVER_KEY not in view.entries:
                    note = "abandoned: the controller that moved the cluster is dead"
                    await abandon_move(self.backend, frozen, note)
                    return
