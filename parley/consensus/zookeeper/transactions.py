"""Transactions: read the keys involved, decide, and send a ``multi`` that fails if any of them has changed.

A version alone does not identify a write: a key that is deleted and created again starts at version 0. So every
deletion also writes the key's bucket, and a check compares the versions of both the key and its bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from kazoo.exceptions import NoAuthError

from parley.consensus.backend import Check, Op, Presence, Put, Revision, violation
from parley.consensus.errors import MaybeApplied, SessionLost, Unauthorized
from parley.consensus.zookeeper.connection import Connection, ResponseLost
from parley.consensus.zookeeper.consistent_reads import Reader, State, Stored, store_deleted
from parley.consensus.zookeeper.key_layout import ENTRY_PREFIX, KeyLayout, encode, encode_changes, entries_made
from parley.consensus.zookeeper.multi_requests import (
    NO_AUTH,
    OK,
    RUNTIME_INCONSISTENCY,
    SEQUENTIAL,
    Acl,
    CheckVersion,
    Create,
    DeleteNode,
    Failed,
    Multi,
    SetData,
    Stat,
    WriteOp,
)
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of an applied transaction.

    ``deleted`` is the number of present keys that it deleted. ``entry`` is the number of its log entry, or None if it
    changed nothing.
    """

    revisions: tuple[Revision | None, ...]
    deleted: int
    entry: int | None = None


@dataclass(slots=True)
class _Plan:
    """The operations of a ``multi``: first the checks, then the writes."""

    checks: dict[str, CheckVersion] = field(default_factory=dict)
    writes: list[WriteOp] = field(default_factory=list)
    bumps: dict[str, SetData] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def ops(self, log: str, acl: Acl) -> list[WriteOp]:
        """Return all operations in order. The last one writes the log's parent, whose Stat shows the transaction's id
        and entry."""
        entry: list[WriteOp] = []
        if self.changed:
            entry = [Create(f"{log}/{ENTRY_PREFIX}", encode_changes(self.changed), acl, SEQUENTIAL), SetData(log, b"")]
        return [*self.checks.values(), *self.writes, *self.bumps.values(), *entry]


class Writer:
    """Applies transactions to one store over one connection."""

    def __init__(
        self, connection: Connection, reader: Reader, layout: KeyLayout, identity: str, acl: Acl, within_s: float
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._layout = layout
        self._identity = identity
        self._acl = acl
        self._within_s = within_s

    async def apply(self, checks: Sequence[Check], ops: Sequence[Op]) -> Applied:
        """Apply a transaction. Raises the errors of ``Backend.txn``."""
        keys = list(dict.fromkeys([check.key for check in checks] + [op.key for op in ops]))
        buckets = list(dict.fromkeys(map(self._layout.bucket, keys)))
        fresh = not ops
        while True:
            state = await self._reader.state(keys, fresh=fresh, buckets=buckets)
            if error := _refusal(checks, ops, state):
                if fresh:
                    raise error
                fresh = True
                continue
            idle = not ops or (fresh and len(ops) == 1 and not isinstance(ops[0], Put) and not state.keys[ops[0].key])
            if idle:
                return Applied((None,) * len(ops), 0)
            plan = self._plan(checks, ops, state)
            multi = plan.ops(self._layout.log, self._acl)
            results = await self._send(multi)
            if results is not None:
                return _applied(ops, state, results)
            fresh = True

    async def sweep(self, keys: Sequence[str]) -> None:
        """Delete the znodes of those keys whose sessions have ended. Skips keys that change in the meantime."""
        for start in range(0, len(keys), 100):
            part = keys[start : start + 100]
            buckets = list(dict.fromkeys(map(self._layout.bucket, part)))
            state = await self._reader.state(part, fresh=True, buckets=buckets)
            plan = self._new_plan()
            for stored in state.keys.values():
                if stored is not None and not stored.alive:
                    self._delete(plan, stored, state)
            if plan.writes:
                await self._send(plan.ops(self._layout.log, self._acl))

    def _new_plan(self) -> _Plan:
        plan = _Plan()
        self._check_version(plan, f"{self._layout.identities}/{self._identity}")
        return plan

    def _plan(self, checks: Sequence[Check], ops: Sequence[Op], state: State) -> _Plan:
        plan = self._new_plan()
        exact = {check.key for check in checks if check.expect is not Presence.ANY}
        for op in ops:
            if isinstance(op, Put) and op.session:
                self._check_version(plan, self._layout.session(op.session.id))
        for key in sorted(exact - {op.key for op in ops}):
            self._check_unchanged(plan, key, state)
        for op in ops:
            stored = state.keys[op.key]
            if isinstance(op, Put):
                self._put(plan, op, stored, state, exact=op.key in exact)
            elif stored is not None:
                self._delete(plan, stored, state)
                if stored.alive:
                    plan.changed.append(op.key)
            else:
                self._check_unchanged(plan, op.key, state)
        return plan

    def _put(self, plan: _Plan, op: Put, stored: Stored | None, state: State, *, exact: bool) -> None:
        path = self._layout.key(op.key)
        data = encode(op.value, op.session.id if op.session else None)
        if stored is None:
            plan.writes.append(Create(path, data, self._acl))
        elif exact:
            self._check_not_recreated(plan, stored, state)
            plan.writes.append(SetData(path, data, stored.stat.version))
        else:
            plan.writes.append(SetData(path, data))
        plan.changed.append(op.key)

    def _delete(self, plan: _Plan, stored: Stored, state: State) -> None:
        self._check_not_recreated(plan, stored, state)
        plan.writes.append(DeleteNode(self._layout.key(stored.key), stored.stat.version))
        bucket = self._layout.bucket(stored.key)
        plan.bumps[bucket] = SetData(bucket, b"")

    def _check_unchanged(self, plan: _Plan, key: str, state: State) -> None:
        """Add a check that the key is as it was read, whether absent, present or dead."""
        path, stored = self._layout.key(key), state.keys[key]
        if stored is None:
            plan.writes += [Create(path, b"\0", self._acl), DeleteNode(path)]
        else:
            self._check_not_recreated(plan, stored, state)
            self._check_version(plan, path, stored.stat.version)

    def _check_not_recreated(self, plan: _Plan, stored: Stored, state: State) -> None:
        bucket = self._layout.bucket(stored.key)
        self._check_version(plan, bucket, state.versions[bucket])
        if stored.owner is not None and stored.alive:
            self._check_version(plan, self._layout.session(stored.owner))

    def _check_version(self, plan: _Plan, path: str, version: int = -1) -> None:
        plan.checks[path] = CheckVersion(path, version)

    async def _send(self, ops: Sequence[WriteOp]) -> list[object] | None:
        """Send a ``multi`` and return its results, or None if it failed because something has changed since the
        read."""
        try:
            results: list[object] = await self._connection.call(Multi(ops), self._within_s)
        except ResponseLost as error:
            raise MaybeApplied(str(error)) from error
        except NoAuthError as error:
            raise Unauthorized("these credentials may not write to the tree") from error
        for n, result in enumerate(results):
            if isinstance(result, Failed) and result.code not in (OK, RUNTIME_INCONSISTENCY):
                if result.code == NO_AUTH:
                    raise Unauthorized("these credentials may not write to the tree")
                if n == 0:
                    raise store_deleted(self._identity)
                return None
        return results


def _refusal(checks: Sequence[Check], ops: Sequence[Op], state: State) -> Exception | None:
    """Return the error with which this state rejects the transaction, or None if the transaction may be applied."""
    for op in ops:
        if isinstance(op, Put) and op.session and op.session.id not in state.sessions:
            return SessionLost(f"session {op.session.id} has ended")
    for check in checks:
        stored = state.keys[check.key]
        found = Revision(stored.stat.mzxid) if stored is not None and stored.alive else None
        if error := violation(check, found):
            return error
    return None


def _applied(ops: Sequence[Op], state: State, results: list[object]) -> Applied:
    written = results[-1]
    if not isinstance(written, Stat):  # the transaction changed nothing
        return Applied((None,) * len(ops), 0)
    revisions = (Revision(written.mzxid) if isinstance(op, Put) else None for op in ops)
    deletes = [state.keys[op.key] for op in ops if not isinstance(op, Put)]
    deleted = sum(stored is not None and stored.alive for stored in deletes)
    return Applied(tuple(revisions), deleted, entries_made(written.cversion, written.children) - 1)
