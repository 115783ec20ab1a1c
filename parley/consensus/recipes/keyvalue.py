"""Key-value metadata: persistent keys below one folder, read, written, listed and watched.

``KeyValue`` extends the backend with writes whose outcome is determined after a lost response
(``recipes.settled_write``), read-modify-write (``update``), counters (``next_id``) and writes under a guard. Keys in
arguments and results are relative to the folder; only guards (``Leadership.guard()``) name whole keys.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from parley.consensus.backend import (
    ABSENT,
    ANY,
    LINEARIZABLE,
    At,
    Backend,
    Changed,
    Check,
    Delete,
    Entry,
    Event,
    Expectation,
    Op,
    Page,
    Presence,
    Put,
    Read,
    Removed,
    Revision,
    Session,
    Snapshot,
    TxnResult,
    Watch,
)
from parley.consensus.errors import AlreadyExists, Conflict, Fenced, NotFound, PreconditionFailed, TooLarge
from parley.consensus.recipes.settled_write import Nonces, Writer, unwrap, wrap

FOLDER = "data/"


class KeyValue:
    """The keys below a folder of a backend.

    :param folder: the prefix of every key, which ends with ``/`` or is empty.
    :param rng: the source of nonces and jitter.
    """

    def __init__(self, backend: Backend, rng: random.Random | None = None, *, folder: str = FOLDER) -> None:
        if folder and not folder.endswith("/"):
            raise ValueError(f"the folder {folder!r} must end with a slash")
        self._backend = backend
        self._folder = folder
        self._writer = Writer(backend, rng)
        self._envelope_bytes = len(wrap(b"", ("0" * 16,)))

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        """Return the entry of a key, or None if the key is absent. Raises BadConfig if the value has no envelope."""
        entry = await self._backend.get(self._folder + key, read=read)
        return self._out(entry) if entry else None

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        expect: Expectation = ANY,
        session: Session | None = None,
        guard: Check | None = None,
    ) -> Revision:
        """Write a value. Raises the same errors as ``Backend.put``, and Fenced if the guard does not hold."""
        revision = (await self.txn([Check(key, expect)], [Put(key, value, session)], guard=guard)).revisions[0]
        assert revision is not None
        return revision

    async def delete(self, key: str, *, expect: Expectation = ANY, guard: Check | None = None) -> bool:
        """Delete a key. Returns False if it was absent.

        If a response was lost, and the key is absent afterwards, this call counts as having deleted it. Raises the same
        errors as ``Backend.delete``, and Fenced if the guard does not hold.
        """
        if expect is Presence.ABSENT:
            raise ValueError("a delete cannot expect ABSENT")
        if expect is not ANY:
            await self.txn([Check(key, expect)], [Delete(key)], guard=guard)
            return True
        try:
            await self.txn([Check(key, Presence.PRESENT)], [Delete(key)], guard=guard)
        except NotFound:
            return False
        return True

    async def list(
        self, prefix: str = "", *, limit: int = 1000, after: str | None = None, read: Read = LINEARIZABLE
    ) -> Page:
        """Return one page of the entries whose keys start with a prefix, as ``Backend.list`` does.

        Raises BadConfig if a value has no envelope.
        """
        stored_after = None if after is None else self._folder + after
        page = await self._backend.list(self._folder + prefix, limit=limit, after=stored_after, read=read)
        next_after = None if page.next_after is None else page.next_after[len(self._folder) :]
        return Page(tuple(self._out(entry) for entry in page.entries), next_after)

    async def entries(self, prefix: str = "", *, page: int = 1000) -> AsyncIterator[Entry]:
        """Yield all entries whose keys start with a prefix, reading at most ``page`` entries at a time.

        Together, the pages do not show one consistent state. Raises BadConfig if a value has no envelope.
        """
        after: str | None = None
        while True:
            part = await self.list(prefix, limit=page, after=after)
            for entry in part.entries:
                yield entry
            if (after := part.next_after) is None:
                return

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op], *, guard: Check | None = None) -> TxnResult:
        """Apply all operations or none, as ``Backend.txn`` does. The guard counts as one more check, the first.

        Raises TooManyOps if the store cannot accept all of them in one transaction. ``split`` splits work that need not
        be atomic.
        """
        return await self._commit(checks, ops, guard, {})

    def split(self, ops: Sequence[Op], *, checks: int = 1) -> Iterator[Sequence[Op]]:
        """Split operations, in order, into as few transactions as the store allows, each with ``checks`` checks.

        Each part is atomic, the whole is not: choose an order in which the state is legal after each part. Before
        the first part is yielded, raises TooLarge if a single operation is too large, and ValueError if a key is
        illegal or if the checks leave no room for an operation.
        """
        limits = self._backend.capabilities
        for op in ops:
            limits.admit_key(self._folder + op.key)
            if isinstance(op, Put) and len(op.value) + self._envelope_bytes > limits.value_bytes_max:
                raise TooLarge(f"the value of {op.key}", len(op.value), limits.value_bytes_max)
        yield from limits.parts(
            ops, checks=checks, key_extra_bytes=len(self._folder), value_extra_bytes=self._envelope_bytes
        )

    async def update(
        self, key: str, change: Callable[[bytes | None], bytes | None], *, guard: Check | None = None
    ) -> Entry | None:
        """Replace the value of a key with ``change(value)``. Returns the new entry, or None if the key is now absent.

        ``change`` receives None if the key is absent, and returns None to delete the key. It must be pure: it is called
        again if another client writes in between. Its exceptions are passed on. Raises Fenced if the guard does not
        hold, and BadConfig if the value has no envelope. Raises MaybeApplied if a response was lost and the outcome
        cannot be determined: the store remained unreachable, or other clients have since deleted the key or written it
        many times.
        """
        attempt = 0
        while True:
            stored = await self._backend.get(self._folder + key)
            old = unwrap(stored) if stored else None
            new = change(old.value if old else None)
            if new is None and stored is None:
                return None
            check = Check(key, At(stored.revision) if stored else ABSENT)
            op: Op = Delete(key) if new is None else Put(key, new)
            try:
                result = await self._commit([check], [op], guard, {key: old.nonces} if old else {})
            except (AlreadyExists, Conflict):
                await self._writer.pause(attempt)
                attempt += 1
                continue
            revision = result.revisions[0]
            return Entry(key, new, revision) if new is not None and revision is not None else None

    async def next_id(self, key: str, *, block: int = 1, first: int = 0, guard: Check | None = None) -> int:
        """Reserve ``block`` numbers that no other call receives, and return the lowest. The very first call returns
        ``first``.

        A number can be lost (by a crash or a lost response) but is never reserved twice. The key contains the next free
        number as decimal text. Raises the errors of ``update``.
        """

        def advance(value: bytes | None) -> bytes:
            return b"%d" % ((int(value) if value is not None else first) + block)

        entry = await self.update(key, advance, guard=guard)
        assert entry is not None
        return int(entry.value) - block

    async def reserve_below(self, key: str, end: int) -> int | None:
        """Make ``next_id`` of this key return no number below ``end`` from now on.

        If the counter is lower, raises it and returns its previous value (0 if it was absent). Otherwise returns None.
        """
        entry = await self.get(key)
        found = 0 if entry is None else int(entry.value)
        if found >= end:
            return None

        def lift(value: bytes | None) -> bytes:
            return b"%d" % max(int(value or 0), end)

        await self.update(key, lift)
        return found

    def watch(self, prefix: str = "") -> KeyValueWatch:
        """Return a watch of the keys that start with a prefix. ``Watch`` defines the rules."""
        return KeyValueWatch(self._backend.watch(self._folder + prefix), self._out, len(self._folder))

    async def _commit(
        self, checks: Sequence[Check], ops: Sequence[Op], guard: Check | None, replaced: dict[str, Nonces]
    ) -> TxnResult:
        whole = [replace(check, key=self._folder + check.key) for check in checks]
        try:
            return await self._writer.commit(
                [guard, *whole] if guard else whole,
                [replace(op, key=self._folder + op.key) for op in ops],
                replaced={self._folder + key: nonces for key, nonces in replaced.items()},
            )
        except (PreconditionFailed, Fenced) as error:
            if not (guard and error.key == guard.key):
                error.key = error.key[len(self._folder) :]
            raise

    def _out(self, entry: Entry) -> Entry:
        return replace(entry, key=entry.key[len(self._folder) :], value=unwrap(entry).value)


class KeyValueWatch:
    """A ``Watch`` on a ``KeyValue``: with the same rules, but relative keys and unwrapped values."""

    def __init__(self, watch: Watch, out: Callable[[Entry], Entry], cut: int) -> None:
        self._watch = watch
        self._out = out
        self._cut = cut

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._watch.__aexit__(kind, error, trace)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        match await self._watch.__anext__():
            case Snapshot(entries):
                return Snapshot(tuple(self._out(entry) for entry in entries))
            case Changed(entry):
                return Changed(self._out(entry))
            case Removed(key):
                return Removed(key[self._cut :])

    async def close(self) -> None:
        """Stop watching. A pending ``anext`` raises ``Closed``. Idempotent."""
        await self._watch.close()
