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
record: it only rises, so a client that slept through a move there and back sees that it knows nothing any more.
``begun`` counts the moves that were begun, carried on from store to store: of two claims the later one is higher.

The values bear the nonces of ``recipes.settled_write``; keys below ``charge/`` are never copied.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum

from parley.consensus.backend import (
    ABSENT,
    At,
    Backend,
    Check,
    Delete,
    Entry,
    Op,
    Put,
    Revision,
)
from parley.consensus.errors import BadConfig, PreconditionFailed
from parley.consensus.recipes.settled_write import Writer, unwrap

RECORD_FOLDER = "charge/"
RECORD_KEY = f"{RECORD_FOLDER}state"
DRIVER_KEY = f"{RECORD_FOLDER}driver"
READY_FOLDER = f"{RECORD_FOLDER}ready/"
MOVED_HERE = "moved here"
"""The note of a finished move, in the record of the new store. Records older than ``StoreRecord.came_by`` show by this
note that the move was finished."""


class StoreState(Enum):
    """Where a store stands; the module has the transitions."""

    IN_CHARGE = "in charge"
    PREPARING = "preparing"
    FROZEN = "frozen"
    MOVED = "moved"
    CLAIMED = "claimed"


IN_CHARGE_STATES = frozenset({StoreState.IN_CHARGE, StoreState.PREPARING, StoreState.FROZEN})
"""The states of a store that is in charge; of two stores of a cluster at most one is in one of them."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A store: its address, and the identity it must have."""

    url: str
    identity: str


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """The record.

    :ivar term: how many moves led here.
    :ivar begun: how many moves were begun up to the latest one, in all the stores that led here.
    :ivar past: the identities of the stores that were in charge before this one, latest first.
    :ivar move: the id of the latest move from or to this store, "" for none.
    :ivar other: the other store of that move.
    :ivar note: how that move went, for people.
    :ivar came_by: the id of the move that led here, "" where none did: it outlasts later moves that are given up.
    """

    state: StoreState = StoreState.IN_CHARGE
    term: int = 0
    past: tuple[str, ...] = ()
    move: str = ""
    other: StoreLocation | None = None
    note: str = ""
    begun: int = 0
    came_by: str = ""

    @property
    def is_move_done(self) -> bool:
        """Whether the latest move was carried out, not merely begun, or given up. Without a move it was not."""
        return self.state is StoreState.MOVED or (self.move != "" and self.came_by == self.move)

    def preparing(self, move: str, to: StoreLocation) -> StoreRecord:
        """The brokers are to connect to the other store."""
        return replace(self, state=StoreState.PREPARING, move=move, other=to, note="", begun=self.begun + 1)

    def frozen(self) -> StoreRecord:
        """Nobody writes any more."""
        return replace(self, state=StoreState.FROZEN)

    def moved(self) -> StoreRecord:
        """The other store is in charge."""
        return replace(self, state=StoreState.MOVED)

    def given_up(self, note: str) -> StoreRecord:
        """This store is in charge as before."""
        return replace(self, state=StoreState.IN_CHARGE, note=note)

    def claim(self, move: str, source: StoreLocation) -> StoreRecord:
        """What a store is to become that is to be filled from this one, which lies at ``source``."""
        past = (source.identity, *(each for each in self.past if each != source.identity))
        return StoreRecord(StoreState.CLAIMED, self.term + 1, past, move, source, begun=self.begun)

    def taken(self, note: str) -> StoreRecord:
        """The store is in charge that was claimed."""
        return replace(self, state=StoreState.IN_CHARGE, note=note, came_by=self.move)

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return json.dumps({**asdict(self), "state": self.state.value}).encode()

    @classmethod
    def from_entry(cls, entry: Entry) -> StoreRecord:
        """What is stored.

        :raises BadConfig: it makes no sense.
        """
        try:
            fields = json.loads(unwrap(entry).value)
            other = fields["other"]
            return cls(
                StoreState(fields["state"]),
                int(fields["term"]),
                tuple(fields["past"]),
                fields["move"],
                StoreLocation(**other) if other else None,
                fields["note"],
                int(fields.get("begun", 0)),
                fields.get("came_by", fields["move"] if fields["note"] == MOVED_HERE else ""),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise BadConfig(f"the value of {entry.key} is not Parley's: {error}") from error


async def read_record(backend: Backend) -> tuple[StoreRecord, Revision | None]:
    """The record of an open store, and its revision; that of a store which has none begins with term 0."""
    entry = await backend.get(RECORD_KEY)
    return (StoreRecord(), None) if entry is None else (StoreRecord.from_entry(entry), entry.revision)


def expected(revision: Revision | None) -> Check:
    """The check that the record is as it was read."""
    return Check(RECORD_KEY, At(revision) if revision else ABSENT)


async def write_record(
    writer: Writer, record: StoreRecord, was: Revision | None, *others: Op, checks: Sequence[Check] = ()
) -> Revision:
    """Replace the record if it is as it was read, and do something else in the same transaction.

    :raises PreconditionFailed: it is not; nothing was done.
    :raises MaybeApplied: read it and see.
    """
    result = await writer.commit([expected(was), *checks], [Put(RECORD_KEY, record.to_bytes()), *others])
    revision = result.revisions[0]
    assert revision is not None
    return revision


async def unfreeze(backend: Backend, record: StoreRecord, was: Revision, note: str) -> None:
    """Give up the move that froze the store. Anybody may at any time: it is refused once the move is done.

    :raises Retriable: the store does not answer.
    """
    with suppress(PreconditionFailed):  # it went on, one way or the other
        await write_record(Writer(backend), record.given_up(note), was, Delete(DRIVER_KEY))
