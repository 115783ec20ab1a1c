"""A model of a store for sequential calls: a dict, its whole history, and sessions.

The model does not choose revisions. It learns the store's revisions and checks that they are consistent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parley.consensus.backend import (
    Change,
    Changed,
    Check,
    Entry,
    Event,
    Put,
    Removed,
    Revision,
    Snapshot,
    TxnResult,
    violation,
)
from parley.consensus.backend import Op as Operation
from parley.consensus.conformance.lab import equal, require
from parley.consensus.errors import CoordinationError, SessionLost


@dataclass(slots=True)
class Model:
    """The current state, and all states of each key so far, oldest first; None means that the key was absent."""

    past: dict[str, list[Entry | None]] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)

    @property
    def entries(self) -> dict[str, Entry]:
        """The current entries by key, sorted."""
        last = ((key, states[-1]) for key, states in sorted(self.past.items()))
        return {key: entry for key, entry in last if entry is not None}

    def below(self, prefix: str) -> dict[str, Entry]:
        """Return the current entries below a prefix."""
        return {key: entry for key, entry in self.entries.items() if key.startswith(prefix)}

    def errors(self, checks: Sequence[Check], ops: Sequence[Operation]) -> list[CoordinationError]:
        """Return the errors that a transaction may raise. It must raise one of them, or succeed if there are none."""
        errors: list[CoordinationError] = []
        if any(isinstance(op, Put) and op.session and op.session.id not in self.sessions for op in ops):
            errors.append(SessionLost("a session is over"))
        entries = self.entries
        for check in checks:
            entry = entries.get(check.key)
            if error := violation(check, entry.revision if entry else None):
                errors.append(error)
                break
        return errors

    def apply(self, ops: Sequence[Operation], result: TxnResult) -> None:
        """Apply a transaction that succeeded in the store. Raises Broken if its revisions are impossible."""
        equal(len(result.revisions), len(ops), "the number of revisions")
        for op, revision in zip(ops, result.revisions, strict=True):
            if isinstance(op, Put):
                require(isinstance(revision, Revision), f"putting {op.key} gave {revision}")
                assert revision is not None
                known = {entry.revision for entry in self.past.get(op.key, ()) if entry}
                require(revision not in known, f"{op.key} got {revision} twice")
                session = op.session.id if op.session else None
                self.past.setdefault(op.key, []).append(Entry(op.key, op.value, revision, session))
            else:
                equal(revision, None, f"the revision of the deleted {op.key}")
                self._remove(op.key)

    def end(self, session: str) -> None:
        """End a session, and remove the keys bound to it."""
        self.sessions.discard(session)
        for key in [key for key, entry in self.entries.items() if entry.session == session]:
            self._remove(key)

    def _remove(self, key: str) -> None:
        if key in self.entries:
            self.past[key].append(None)


@dataclass(slots=True)
class Follower:
    """Compares the events of one watch with the history: each must show a past state, never an earlier one than the
    event before."""

    model: Model
    prefix: str
    entries: dict[str, Entry] = field(default_factory=dict)
    _position: dict[str, int] = field(default_factory=dict)
    _begun: bool = False

    def up_to_date(self) -> bool:
        """Return True if the events so far show the current state."""
        return self._begun and self.entries == self.model.below(self.prefix)

    def take(self, event: Event) -> None:
        """Take the next event. Raises Broken if it is impossible."""
        if isinstance(event, Snapshot):
            keys = [entry.key for entry in event.entries]
            equal(keys, sorted(set(keys)), "the order of a Snapshot")
            present = {entry.key: entry for entry in event.entries}
            for key in self.model.past.keys() | present.keys():
                if key.startswith(self.prefix):
                    self._advance(key, present.get(key), event, again=True)
            require(all(key.startswith(self.prefix) for key in keys), f"{event} reached a watch of {self.prefix!r}")
            self.entries = present
            self._begun = True
            return
        require(self._begun, f"the first event was {event}")
        self._take_change(event)

    def _take_change(self, change: Change) -> None:
        key = change.entry.key if isinstance(change, Changed) else change.key
        require(key.startswith(self.prefix), f"{change} reached a watch of {self.prefix!r}")
        match change:
            case Changed(entry):
                self._advance(entry.key, entry, change, again=False)
                self.entries[entry.key] = entry
            case Removed(key):
                self._advance(key, None, change, again=False)
                self.entries.pop(key, None)

    def _advance(self, key: str, entry: Entry | None, event: Event, *, again: bool) -> None:
        """Find the past state of the key that an event shows. It must be later than the state that this watch showed
        last, or with ``again``, not earlier. Raises Broken if there is no such state."""
        past: list[Entry | None] = [None, *self.model.past.get(key, ())]
        start = self._position.get(key, 0 if again else -1) + (not again)
        for position in range(start, len(past)):
            if past[position] == entry:
                self._position[key] = position
                return
        require(False, f"{key} is reported as {entry}, which it has not been since {past[max(start - 1, 0)]}")
