"""Which store is in charge of a cluster: a record in every store, and a backend that obeys it.

The record, key ``charge/state``, is checked by every write of ``StoreInCharge``, and every change of it makes a new
revision: so from the moment it is changed no write passes whose writer does not know the change. That is what makes a
live move safe (``parley.consensus.migration``). Its states::

    in charge   the cluster's state is here, and is written here
    preparing   the same; the brokers are asked to connect to the store named as ``other``
    frozen      the same, but writes wait; only while ``charge/driver`` exists, which is bound to its driver's session
    moved       a tombstone: the state is in ``other``, for good
    claimed     not in charge (yet): it is being filled from ``other``, or that was given up

A move changes the records of two stores::

    the store left      in charge --> preparing --> frozen --> moved
                            ^             |            |
                            +-- given up -+------------+

    the store filled    no record, moved, claimed -------> claimed --> in charge
                        in charge, empty ----> frozen -----^   |
                            ^                     |            |
                            +------ given up -----+------------+

So ``frozen`` is said of both: of a store being moved out of, whose state is about to be final, and of one in which a
cluster may just begin, held by who wants to claim it (``parley.consensus.store_claim``). For those who write it is the
same: they
wait, and once the driver is gone anybody gives it up. So may anybody enter that a claimed store is in charge who has
found the other store's ``moved`` of this move.

A store without a record is in charge of whatever is in it. ``term`` is how many moves led to this store being in
charge: it only rises, so a client that slept through a move there and back sees that it knows nothing any more.
``begun`` counts the moves that were begun, carried on from store to store: of two claims the later one is higher.

The values bear the nonces of ``recipes.writing``; keys below ``charge/`` are never copied.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Self

from parley.consensus.backend import (
    ABSENT,
    LINEARIZABLE,
    At,
    Backend,
    Capabilities,
    Check,
    Delete,
    Entry,
    Op,
    Page,
    Put,
    Read,
    Revision,
    Session,
    TxnResult,
    Watch,
)
from parley.consensus.errors import AlreadyExists, BadConfig, Fenced, Moved, PreconditionFailed
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import Writer, unwrap
from parley.consensus.registry import open_backend

FOLDER = "charge/"
STATE = f"{FOLDER}state"
DRIVER = f"{FOLDER}driver"
READY = f"{FOLDER}ready/"
MOVED_HERE = "moved here"
"""The note of a move that was done, in the record of the store it led to. Records older than ``Charge.came_by`` tell
by it that it was."""


class State(Enum):
    """Where a store stands; the module has the transitions."""

    IN_CHARGE = "in charge"
    PREPARING = "preparing"
    FROZEN = "frozen"
    MOVED = "moved"
    CLAIMED = "claimed"


HOLDS_STATE = frozenset({State.IN_CHARGE, State.PREPARING, State.FROZEN})
"""The states of a store that is in charge; of two stores of a cluster at most one is in one of them."""


@dataclass(frozen=True, slots=True)
class Place:
    """A store: its address, and the identity it must have."""

    url: str
    identity: str


@dataclass(frozen=True, slots=True)
class Charge:
    """The record.

    :ivar term: how many moves led here.
    :ivar begun: how many moves were begun up to the latest one, in all the stores that led here.
    :ivar past: the identities of the stores that were in charge before this one, latest first.
    :ivar move: the id of the latest move from or to this store, "" for none.
    :ivar other: the other store of that move.
    :ivar note: how that move went, for people.
    :ivar came_by: the id of the move that led here, "" where none did: it outlasts later moves that are given up.
    """

    state: State = State.IN_CHARGE
    term: int = 0
    past: tuple[str, ...] = ()
    move: str = ""
    other: Place | None = None
    note: str = ""
    begun: int = 0
    came_by: str = ""

    @property
    def is_move_done(self) -> bool:
        """Whether the latest move was carried out, not merely begun, or given up. Without a move it was not."""
        return self.state is State.MOVED or (self.move != "" and self.came_by == self.move)

    def preparing(self, move: str, to: Place) -> Charge:
        """The brokers are to connect to the other store."""
        return replace(self, state=State.PREPARING, move=move, other=to, note="", begun=self.begun + 1)

    def frozen(self) -> Charge:
        """Nobody writes any more."""
        return replace(self, state=State.FROZEN)

    def moved(self) -> Charge:
        """The other store is in charge."""
        return replace(self, state=State.MOVED)

    def given_up(self, note: str) -> Charge:
        """This store is in charge as before."""
        return replace(self, state=State.IN_CHARGE, note=note)

    def claim(self, move: str, source: Place) -> Charge:
        """What a store is to become that is to be filled from this one, which lies at ``source``."""
        past = (source.identity, *(each for each in self.past if each != source.identity))
        return Charge(State.CLAIMED, self.term + 1, past, move, source, begun=self.begun)

    def taken(self, note: str) -> Charge:
        """The store is in charge that was claimed."""
        return replace(self, state=State.IN_CHARGE, note=note, came_by=self.move)

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return json.dumps({**asdict(self), "state": self.state.value}).encode()

    @classmethod
    def from_entry(cls, entry: Entry) -> Charge:
        """What is stored.

        :raises BadConfig: it makes no sense.
        """
        try:
            fields = json.loads(unwrap(entry).value)
            other = fields["other"]
            return cls(
                State(fields["state"]),
                int(fields["term"]),
                tuple(fields["past"]),
                fields["move"],
                Place(**other) if other else None,
                fields["note"],
                int(fields.get("begun", 0)),
                fields.get("came_by", fields["move"] if fields["note"] == MOVED_HERE else ""),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise BadConfig(f"the value of {entry.key} is not Parley's: {error}") from error


async def read_charge(backend: Backend) -> tuple[Charge, Revision | None]:
    """The record of an open store, and its revision; that of a store which has none begins with term 0."""
    entry = await backend.get(STATE)
    return (Charge(), None) if entry is None else (Charge.from_entry(entry), entry.revision)


def expected(revision: Revision | None) -> Check:
    """The check that the record is as it was read."""
    return Check(STATE, At(revision) if revision else ABSENT)


async def write_charge(
    writer: Writer, charge: Charge, was: Revision | None, *others: Op, checks: Sequence[Check] = ()
) -> Revision:
    """Replace the record if it is as it was read, and do something else in the same transaction.

    :raises PreconditionFailed: it is not; nothing was done.
    :raises MaybeApplied: read it and see.
    """
    result = await writer.commit([expected(was), *checks], [Put(STATE, charge.to_bytes()), *others])
    revision = result.revisions[0]
    assert revision is not None
    return revision


async def thaw(backend: Backend, charge: Charge, was: Revision, note: str) -> None:
    """Give up the move that froze the store. Anybody may at any time: it is refused once the move is done.

    :raises Retriable: the store does not answer.
    """
    with suppress(PreconditionFailed):  # it went on, one way or the other
        await write_charge(Writer(backend), charge.given_up(note), was, Delete(DRIVER))


class StoreInCharge(Backend):
    """A store for as long as it is in charge: writes wait while it is frozen, and raise ``Moved`` once it has moved.

    Reads and watches are the store's own, so they go on telling what it last knew.

    :param backend: the store; may be open already.
    :param url: its address.
    :param term: of its record, where that has been seen; else what is seen first counts.
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
        self._capabilities = replace(own, txn_ops_max=own.txn_ops_max - 1, txn_bytes_max=own.txn_bytes_max - len(STATE))

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        return cls(open_backend(url, **options), url)

    @property
    def capabilities(self) -> Capabilities:
        """The store's, less what the check of each transaction takes."""
        return self._capabilities

    @property
    def identity(self) -> str:
        return self.backend.identity

    @property
    def place(self) -> Place:
        """Where others find it."""
        return Place(self.url, self.identity)

    async def open(self, *, expect_identity: str | None = None) -> None:
        """Raises, beside what every store raises, ``Moved``."""
        await self.backend.open(expect_identity=expect_identity)
        await self.refresh()

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
        """As every store's; raises ``Moved`` too.

        A transaction that was refused because the record had changed was not applied, and is sent once more.
        """
        self._capabilities.admit(checks, ops)
        while True:
            if self._revision is None:
                await self.refresh()
            seen = self._revision
            assert seen is not None
            try:
                return await self.backend.txn([Check(STATE, At(seen), fences=True), *checks], ops)
            except Fenced as fenced:
                if fenced.key != STATE:
                    raise
                if self._revision == seen:
                    self._revision = None

    async def refresh(self) -> Charge:
        """Read the record, and wait while the store is frozen.

        :raises Moved: this store is not in charge, or was not in between.
        """
        while True:
            entry = await self.backend.get(STATE)
            if entry is None:
                await self._begin()
                continue
            charge = Charge.from_entry(entry)
            self.require(charge)
            if charge.state is not State.FROZEN:
                self._revision = entry.revision
                return charge
            await self._until_thawed(charge, entry.revision)

    def require(self, charge: Charge) -> None:
        """Do nothing while the store is in charge, as this record of it says, and has been since the first one seen.

        :raises Moved: it is not.
        """
        if self._term is None and charge.state in HOLDS_STATE:
            self._term = charge.term
        if charge.state not in HOLDS_STATE or charge.term != self._term:
            raise Moved(f"the store {self.identity} is not in charge any more ({charge.state.value})")

    async def _begin(self) -> None:
        with suppress(AlreadyExists):  # another was faster
            await self._writer.commit([Check(STATE, ABSENT)], [Put(STATE, Charge().to_bytes())])

    async def _until_thawed(self, charge: Charge, seen: Revision) -> None:
        """Wait until the record changes; a move whose driver is gone is given up."""
        view = View()
        async with self.backend.watch(FOLDER) as watch:
            async for event in watch:
                view.apply(event)
                state = view.entries.get(STATE)
                if state is None or state.revision != seen:
                    return
                if DRIVER not in view.entries:
                    await thaw(self.backend, charge, seen, "given up: the controller that moved the cluster is gone")
                    return
