"""The record of which store is in charge of a cluster: one in every store, at the key ``charge/state``.

Every write of ``StoreInCharge`` checks the record, and every change to the record gives it a new revision. So once the
record has changed, the store rejects writes from clients that do not know the change. That makes it safe to move a
running cluster.

``StoreState``, ``StoreEvent`` and ``STEPS`` define the states, the events and the legal transitions; ``write_record``
rejects any other transition. A store without a record (state None) is in charge of its contents. Values are stored in
the envelope of ``recipes.settled_write``. Keys below ``charge/`` are never copied to another store. See
docs/coordination.md, "How a cluster moves".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from enum import Enum
from typing import NamedTuple

from parley.consensus.backend import ABSENT, At, Backend, Check, Delete, Entry, Op, Put, Revision
from parley.consensus.errors import BadConfig, IllegalStep, PreconditionFailed
from parley.consensus.recipes.settled_write import Writer, unwrap
from parley.light_dataclasses import dataclass

RECORD_FOLDER = "charge/"
RECORD_KEY = f"{RECORD_FOLDER}state"
DRIVER_KEY = f"{RECORD_FOLDER}driver"
READY_FOLDER = f"{RECORD_FOLDER}ready/"
ROLLED_BACK_KEY = f"{RECORD_FOLDER}set-back"
"""A key that exists until the controller has dealt with a rollback of the store: a restore, or the loss of its latest
writes. The value describes what happened."""
MOVED_HERE = "moved here"
"""The note of a completed move, in the record of the new store. In records older than ``StoreRecord.came_by``, this
note shows that the move was completed."""


class StoreState(Enum):
    """The state of a store. The values are part of the stored record."""

    IN_CHARGE = "in charge"
    """The cluster's state is in this store, and brokers write it here."""
    PREPARING = "preparing"
    """In charge. The brokers connect to the store that the cluster is about to move to (``other``)."""
    FROZEN = "frozen"
    """In charge, but writers wait: a move out of this store is about to be committed, or another cluster wants to claim
    the store while it is empty. Ends when ``charge/driver`` is deleted, which is bound to the driver's session."""
    MOVED = "moved"
    """A tombstone: the cluster's state has permanently moved to ``other``."""
    CLAIMED = "claimed"
    """Not in charge: a move fills this store from ``other``, or did so and was abandoned."""


class StoreEvent(Enum):
    """An event that changes the record of a store."""

    BEGIN = "begin"
    """A cluster starts to use an empty store."""
    PREPARE = "prepare"
    """A move out of the store starts. It invalidates every earlier move."""
    FREEZE = "freeze"
    """The driver of a move, or a claimant, makes the writers wait."""
    COMMIT = "commit"
    """The other store is in charge from now on."""
    CLAIM = "claim"
    """A move starts to fill the store."""
    TAKE = "take"
    """The claimed store is in charge: the move that fills it was committed."""
    ABANDON = "abandon"
    """The move out of the store is abandoned."""
    RESTORE = "restore"
    """Write the same record again, so that the store rejects writes based on the current revision."""


STEPS: Mapping[StoreState | None, Mapping[StoreEvent, frozenset[StoreState]]] = {
    None: {
        StoreEvent.BEGIN: frozenset({StoreState.IN_CHARGE}),
        StoreEvent.PREPARE: frozenset({StoreState.PREPARING}),  # before the cluster has written anything
        StoreEvent.CLAIM: frozenset({StoreState.CLAIMED}),
        StoreEvent.RESTORE: frozenset({StoreState.IN_CHARGE}),
    },
    StoreState.IN_CHARGE: {
        StoreEvent.PREPARE: frozenset({StoreState.PREPARING}),
        StoreEvent.FREEZE: frozenset({StoreState.FROZEN}),
        StoreEvent.RESTORE: frozenset({StoreState.IN_CHARGE}),
    },
    StoreState.PREPARING: {
        StoreEvent.PREPARE: frozenset({StoreState.PREPARING}),
        StoreEvent.FREEZE: frozenset({StoreState.FROZEN}),
        StoreEvent.ABANDON: frozenset({StoreState.IN_CHARGE}),
        StoreEvent.RESTORE: frozenset({StoreState.PREPARING}),
    },
    StoreState.FROZEN: {
        StoreEvent.PREPARE: frozenset({StoreState.PREPARING}),
        StoreEvent.FREEZE: frozenset({StoreState.FROZEN}),  # a claimant takes over from one that has died
        StoreEvent.COMMIT: frozenset({StoreState.MOVED}),
        StoreEvent.CLAIM: frozenset({StoreState.CLAIMED}),
        StoreEvent.ABANDON: frozenset({StoreState.IN_CHARGE}),
        StoreEvent.RESTORE: frozenset({StoreState.IN_CHARGE, StoreState.PREPARING, StoreState.FROZEN}),
    },
    StoreState.MOVED: {
        StoreEvent.CLAIM: frozenset({StoreState.CLAIMED}),
        StoreEvent.RESTORE: frozenset({StoreState.MOVED}),
    },
    StoreState.CLAIMED: {
        StoreEvent.CLAIM: frozenset({StoreState.CLAIMED}),  # by a later move
        StoreEvent.TAKE: frozenset({StoreState.IN_CHARGE}),
        StoreEvent.RESTORE: frozenset({StoreState.IN_CHARGE, StoreState.PREPARING, StoreState.CLAIMED}),
    },
}
IN_CHARGE_STATES = frozenset({StoreState.IN_CHARGE, StoreState.PREPARING, StoreState.FROZEN})
"""The states of a store that is in charge. At most one of a cluster's stores is in one of these states."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """The address of a store, and the identity that it must have."""

    url: str
    identity: str


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """The content of the record. The field names are part of the stored record."""

    state: StoreState = StoreState.IN_CHARGE
    term: int = 0
    """The number of moves that led to this store being in charge. It only increases, so a client that missed a move to
    another store and back notices that its knowledge is out of date."""
    past: tuple[str, ...] = ()
    """The identities of the stores that were in charge before this one, latest first."""
    move: str = ""
    """The id of the latest move from or to this store, or ""."""
    other: StoreLocation | None = None
    """The other store of that move."""
    note: str = ""
    """The outcome of that move, for display."""
    begun: int = 0
    """The number of moves started so far, including those in the stores that were in charge before this one. The later
    of two claims has the higher number."""
    came_by: str = ""
    """The id of the move that led here, or "". Later moves that are abandoned leave it unchanged."""

    @property
    def is_move_done(self) -> bool:
        """True if the latest move was completed; False if it is under way, was abandoned, or there was none."""
        return self.state is StoreState.MOVED or (self.move != "" and self.came_by == self.move)

    def preparing(self, move: str, to: StoreLocation) -> StoreRecord:
        """Return the record after PREPARE: the brokers connect to the other store."""
        return replace(self, state=StoreState.PREPARING, move=move, other=to, note="", begun=self.begun + 1)

    def frozen(self) -> StoreRecord:
        """Return the record after FREEZE: writers wait."""
        return replace(self, state=StoreState.FROZEN)

    def moved(self) -> StoreRecord:
        """Return the record after COMMIT: the other store is in charge."""
        return replace(self, state=StoreState.MOVED)

    def abandoned(self, note: str) -> StoreRecord:
        """Return the record after ABANDON: this store is still in charge."""
        return replace(self, state=StoreState.IN_CHARGE, note=note)

    def claim(self, move: str, source: StoreLocation) -> StoreRecord:
        """Return the record of a store that is to be filled from this store, whose location is ``source``."""
        past = (source.identity, *(each for each in self.past if each != source.identity))
        return StoreRecord(StoreState.CLAIMED, self.term + 1, past, move, source, begun=self.begun)

    def taken(self, note: str) -> StoreRecord:
        """Return the record after TAKE: the claimed store is in charge."""
        return replace(self, state=StoreState.IN_CHARGE, note=note, came_by=self.move)

    def to_bytes(self) -> bytes:
        """Return the encoded record."""
        return json.dumps({**asdict(self), "state": self.state.value}).encode()

    @classmethod
    def from_entry(cls, entry: Entry) -> StoreRecord:
        """Decode a stored record. Raises BadConfig if it is malformed."""
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


class StoredRecord(NamedTuple):
    """A record as it was read. Without a revision, the store has no record."""

    record: StoreRecord
    revision: Revision | None

    @property
    def state(self) -> StoreState | None:
        """The state of the store, or None if it has no record."""
        return None if self.revision is None else self.record.state

    @property
    def unchanged(self) -> Check:
        """The check that the record has not changed since it was read."""
        return Check(RECORD_KEY, At(self.revision) if self.revision else ABSENT)


NO_RECORD = StoredRecord(StoreRecord(), None)
"""The result of ``read_record`` for a store without a record."""


async def read_record(backend: Backend) -> StoredRecord:
    """Return the record of an open store, or ``NO_RECORD``. Raises BadConfig if the record is malformed."""
    entry = await backend.get(RECORD_KEY)
    return NO_RECORD if entry is None else StoredRecord(StoreRecord.from_entry(entry), entry.revision)


async def write_record(
    writer: Writer,
    before: StoredRecord,
    event: StoreEvent,
    record: StoreRecord,
    *others: Op,
    checks: Sequence[Check] = (),
) -> StoredRecord:
    """Replace the record if it has not changed since it was read, in one transaction with ``others``. Returns the new
    record.

    Raises PreconditionFailed if the record has changed (nothing was applied), MaybeApplied if the outcome is unknown
    (read the record), and IllegalStep if the event does not allow this change of state.
    """
    if record.state not in STEPS[before.state].get(event, ()):
        state = "without a record" if before.state is None else before.state.name
        raise IllegalStep("store record", f"{event.name} to {record.state.name}", state)
    result = await writer.commit([before.unchanged, *checks], [Put(RECORD_KEY, record.to_bytes()), *others])
    return StoredRecord(record, result.revisions[0])


async def abandon_move(backend: Backend, stored: StoredRecord, note: str) -> None:
    """Abandon the move that ``stored`` shows. Any client may call this at any time.

    Does nothing if the record has changed since it was read, for example because the move was committed. Raises
    Retriable if the store does not respond.
    """
    with suppress(PreconditionFailed):  # the move continued, or another client abandoned it
        abandoned = stored.record.abandoned(note)
        await write_record(Writer(backend), stored, StoreEvent.ABANDON, abandoned, Delete(DRIVER_KEY))
