"""Stores with one planted fault each, and the check that must find the fault."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import ClassVar

from parley.consensus.backend import (
    ANY,
    LINEARIZABLE,
    PRESENT,
    At,
    Capabilities,
    Changed,
    Check,
    Entry,
    Event,
    Expectation,
    Op,
    Page,
    Put,
    Read,
    Revision,
    Session,
    SessionState,
    TxnResult,
    Watch,
)
from parley.consensus.conformance import Harness
from parley.consensus.conformance.stores.local import LocalHarness
from parley.consensus.conformance.stores.memory import MemoryHarness
from parley.consensus.errors import Closed, CoordinationError, MaybeApplied, TooManyOps, Unavailable
from parley.consensus.local import LocalBackend
from parley.consensus.memory import MemoryBackend, MemoryStore
from parley.consensus.memory.backend import MemoryWatch


class Mutant(MemoryHarness):
    """A memory store with a faulty server or a faulty client."""

    patience = 0.02
    found_by: ClassVar[str]
    server: ClassVar[type[MemoryStore]] = MemoryStore
    at_client: ClassVar[type[MemoryBackend]] = MemoryBackend

    def new_store(self) -> MemoryStore:
        return self.server()

    def new_client(self, store: MemoryStore) -> MemoryBackend:
        return self.at_client(store)


class WatchDropsEvents(Mutant):
    found_by = "watch-loses-nothing"

    class server(MemoryStore):  # noqa: N801
        def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
            reached, events = super().changes(prefix, position)
            return reached, [event for n, event in enumerate(events) if n % 3 != 2]


class WatchMissesWhatFollowsTheSnapshot(Mutant):
    found_by = "watch-loses-nothing"

    class at_client(MemoryBackend):  # noqa: N801
        def watch(self, prefix: str) -> Watch:
            backend = self

            class Late(MemoryWatch):
                async def _next(self) -> Event:
                    begins = self.position < 0
                    event = await super()._next()
                    if begins:
                        await asyncio.sleep(0.002)
                        self.position = backend.store._sequence
                    return event

            watch = Late(self, prefix)
            self._watches[watch] = None
            return watch


class WatchGoesBack(Mutant):
    found_by = "watch-order"

    class server(MemoryStore):  # noqa: N801
        before: ClassVar[dict[str, Entry]] = {}

        def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
            reached, events = super().changes(prefix, position)
            again = [
                Changed(self.before[e.entry.key])
                for e in events
                if isinstance(e, Changed) and e.entry.key in self.before
            ]
            self.before.update({e.entry.key: e.entry for e in events if isinstance(e, Changed)})
            return reached, [*events, *again, *events]


class WatchKeepsEverything(Mutant):
    found_by = "watch-slow-consumer"

    class at_client(MemoryBackend):  # noqa: N801
        def watch(self, prefix: str) -> Watch:
            class Hoarder(MemoryWatch):
                def wake(self) -> None:
                    if self.position >= 0:
                        self.position, events = self._backend.store.changes(self._prefix, self.position)
                        self._events = [*reversed(events), *self._events]
                    super().wake()

            watch = Hoarder(self, prefix)
            self._watches[watch] = None
            return watch


class WatchSilentAboutReconnecting(Mutant):
    found_by = "watch-outlives-disconnection"

    class at_client(MemoryBackend):  # noqa: N801
        def reconnect(self) -> None:
            super().reconnect()
            for watch in self._watches:
                watch.position = self.store._sequence


class WatchEndsAgainAndAgain(Mutant):
    found_by = "watch-ends-once"

    class at_client(MemoryBackend):  # noqa: N801
        def watch(self, prefix: str) -> Watch:
            class Repeating(MemoryWatch):
                async def __anext__(self) -> Event:
                    return await self._next()

            watch = Repeating(self, prefix)
            self._watches[watch] = None
            return watch


class WatchLosesWhatIsCancelled(Mutant):
    found_by = "watch-survives-cancelling"

    class at_client(MemoryBackend):  # noqa: N801
        def watch(self, prefix: str) -> Watch:
            class Hasty(MemoryWatch):
                async def _next(self) -> Event:
                    event = await super()._next()
                    await asyncio.sleep(0)
                    return event

            watch = Hasty(self, prefix)
            self._watches[watch] = None
            return watch


class CompareAndSetIgnoresTheRevision(Mutant):
    found_by = "kv-expectations"

    class server(MemoryStore):  # noqa: N801
        def apply(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            loose = [dataclasses.replace(c, expect=PRESENT) if isinstance(c.expect, At) else c for c in checks]
            return super().apply(loose, ops)


class RevisionsBeginAnewWithTheKey(Mutant):
    found_by = "kv-revisions-never-repeat"

    class server(MemoryStore):  # noqa: N801
        def _put(self, op: Put) -> Revision:
            old = self._entries.get(op.key)
            version = old.revision.token if old else 0
            super()._put(op)
            assert isinstance(version, int)
            entry = dataclasses.replace(self._entries[op.key], revision=Revision(version + 1))
            self._entries[op.key] = entry
            return entry.revision


class ListingIsUnsorted(Mutant):
    found_by = "kv-order"

    class server(MemoryStore):  # noqa: N801
        def list(self, prefix: str, limit: int, after: str | None) -> Page:
            page = super().list(prefix, limit, after)
            return dataclasses.replace(page, entries=page.entries[::-1])


class PagesOverlap(Mutant):
    found_by = "kv-paging"

    class server(MemoryStore):  # noqa: N801
        def list(self, prefix: str, limit: int, after: str | None) -> Page:
            page = super().list(prefix, limit, after)
            if page.next_after and len(page.entries) > 700:
                return Page(page.entries, page.entries[-2].key)
            return page


class ValuesAreText(Mutant):
    found_by = "kv-exact"

    class server(MemoryStore):  # noqa: N801
        def _put(self, op: Put) -> Revision:
            return super()._put(dataclasses.replace(op, value=op.value.decode("utf-8", "replace").encode()))


class LongTransactionsAreSplit(Mutant):
    found_by = "kv-limits"

    class at_client(MemoryBackend):  # noqa: N801
        async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            try:
                return await super().txn(checks, ops)
            except TooManyOps:
                half = len(ops) // 2
                one, two = await super().txn(checks, ops[:half]), await super().txn([], ops[half:])
                return TxnResult(one.revisions + two.revisions)


class DeclaredLimitIsAWish(Mutant):
    found_by = "kv-limits"

    class at_client(MemoryBackend):  # noqa: N801
        @property
        def capabilities(self) -> Capabilities:
            return dataclasses.replace(self.store.capabilities, value_bytes_max=16 << 20, txn_bytes_max=16 << 20)

        async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            self.store.capabilities.admit(checks, ops)
            return await super().txn(checks, ops)


class TransactionAppliedBeforeItsChecks(Mutant):
    found_by = "txn-all-or-nothing"

    class server(MemoryStore):  # noqa: N801
        def apply(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            if len(checks) < 2:
                return super().apply(checks, ops)
            result = super().apply([], ops)
            super().apply(checks, [])
            return result


class TransactionInPieces(Mutant):
    found_by = "txn-atomic-to-others"

    class at_client(MemoryBackend):  # noqa: N801
        async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            parts = [await super(type(self), self).txn([], [op]) for op in ops]
            return TxnResult(tuple(part.revisions[0] for part in parts))


class AnyFailureIsReported(Mutant):
    found_by = "txn-first-failure"

    class server(MemoryStore):  # noqa: N801
        def apply(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            return super().apply(checks[::-1], ops)


class ReadsAreStale(Mutant):
    found_by = "history-linearizable"

    class at_client(MemoryBackend):  # noqa: N801
        async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
            old = self.__dict__.setdefault("cache", {})
            fresh = await super().get(key, read=read)
            known: Entry | None = old.get(key, fresh)
            old[key] = fresh
            return known


class UpdatesAreLost(Mutant):
    found_by = "kv-concurrent-increments"

    class at_client(MemoryBackend):  # noqa: N801
        async def put(
            self, key: str, value: bytes, *, expect: Expectation = ANY, session: Session | None = None
        ) -> Revision:
            await self.txn([Check(key, expect)], [])
            return await super().put(key, value, session=session)


class LostAnswerCalledNotApplied(Mutant):
    found_by = "ambiguous-writes"

    class at_client(MemoryBackend):  # noqa: N801
        def _write(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            try:
                return super()._write(checks, ops)
            except MaybeApplied as error:
                raise Unavailable(str(error)) from error


class LostAnswerRepeatedBlindly(Mutant):
    found_by = "ambiguous-writes-settled"

    class at_client(MemoryBackend):  # noqa: N801
        def _write(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            try:
                return super()._write(checks, ops)
            except MaybeApplied:
                return super()._write([c for c in checks if not isinstance(c.expect, At)], ops)


class ExpiryIsLate(Mutant):
    found_by = "session-stopped-process"

    class server(MemoryStore):  # noqa: N801
        def new_session(self, deadline: float) -> str:
            return super().new_session(deadline + 3)

        def renew(self, session_id: str, deadline: float) -> bool:
            return super().renew(session_id, deadline + 3)


class ExpiryIsLateAfterAKill(ExpiryIsLate):
    found_by = "session-killed-process"


class ExpiryWaitsForTheSessionBefore(Mutant):
    found_by = "session-killed-process"

    class server(MemoryStore):  # noqa: N801
        def _arm(self) -> None:
            if self._timer is None:
                super()._arm()


class ExpiryIsEarly(Mutant):
    found_by = "session-cut-off"

    class server(MemoryStore):  # noqa: N801
        def new_session(self, deadline: float) -> str:
            return super().new_session(deadline - 1.5)

        def renew(self, session_id: str, deadline: float) -> bool:
            return super().renew(session_id, deadline - 1.5)


class SessionBelievedTooLong(Mutant):
    found_by = "session-ttl"

    class at_client(MemoryBackend):  # noqa: N801
        async def open_session(self, ttl_ms: int) -> Session:
            session = await super().open_session(ttl_ms)
            session._sent_at += session.ttl_ms / 2000
            return session


class SessionNotRenewed(Mutant):
    found_by = "session-renewed"

    class at_client(MemoryBackend):  # noqa: N801
        async def open_session(self, ttl_ms: int) -> Session:
            session = await super().open_session(ttl_ms)
            session.renewed = lambda sent_at: True  # type: ignore[method-assign]
            return session


class SessionsEndWithTheirNeighbors(Mutant):
    found_by = "session-many"

    class server(MemoryStore):  # noqa: N801
        def expire(self, session_id: str) -> None:
            super().expire(session_id)
            if len(self.sessions) > 100:
                super().expire(self.sessions[0])


class ClosedSessionKeepsItsKeys(Mutant):
    found_by = "session-carries-its-keys"

    class server(MemoryStore):  # noqa: N801
        def expire(self, session_id: str) -> None:
            if self._deadlines.get(session_id, 0) <= asyncio.get_running_loop().time():
                super().expire(session_id)


class PutKeepsTheBinding(Mutant):
    found_by = "session-binding"

    class server(MemoryStore):  # noqa: N801
        def _put(self, op: Put) -> Revision:
            old = self._entries.get(op.key)
            revision = super()._put(op)
            if old and old.session:
                self._entries[op.key] = dataclasses.replace(self._entries[op.key], session=old.session)
            return revision


class DeadSessionsMayWrite(Mutant):
    found_by = "txn-sessions"

    class at_client(MemoryBackend):  # noqa: N801
        def _write(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            alive = [
                dataclasses.replace(op, session=None)
                if isinstance(op, Put) and op.session and op.session.state is SessionState.LOST
                else op
                for op in ops
            ]
            return super()._write(checks, alive)


class DisconnectionEndsTheSession(Mutant):
    found_by = "session-outlives-disconnection"

    class at_client(MemoryBackend):  # noqa: N801
        def disconnect(self) -> None:
            for session in tuple(self._sessions):
                self.store.expire(session)
            super().disconnect()


class SessionsLeaveTasks(Mutant):
    found_by = "session-leaks-nothing"

    class at_client(MemoryBackend):  # noqa: N801
        async def open_session(self, ttl_ms: int) -> Session:
            self.__dict__.setdefault("tasks", []).append(asyncio.create_task(asyncio.sleep(3600)))
            return await super().open_session(ttl_ms)


class ClientsLeaveTasks(Mutant):
    found_by = "client-leaks-nothing"

    class at_client(MemoryBackend):  # noqa: N801
        async def open(self, *, expect_identity: str | None = None) -> None:
            self.__dict__["task"] = asyncio.create_task(asyncio.sleep(3600))
            await super().open(expect_identity=expect_identity)


class GuardsAreIgnored(Mutant):
    found_by = "election-stale-leader-fenced"

    class server(MemoryStore):  # noqa: N801
        def apply(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            return super().apply([check for check in checks if not check.fences], ops)


class GuardsAreIgnoredOnDeposing(GuardsAreIgnored):
    found_by = "election-deposing-is-safe"


class WipedStoreIsTakenForAnEmptyOne(Mutant):
    found_by = "store-wiped-is-refused"

    class at_client(MemoryBackend):  # noqa: N801
        def wiped(self) -> None:
            self._identity = self.store.identity
            super().wiped()


class AnyIdentityWillDo(Mutant):
    found_by = "store-identity"

    class at_client(MemoryBackend):  # noqa: N801
        async def open(self, *, expect_identity: str | None = None) -> None:
            await super().open()


class ClosedClientAnswers(Mutant):
    found_by = "store-closed"

    class at_client(MemoryBackend):  # noqa: N801
        async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
            try:
                return await super().get(key, read=read)
            except Closed:
                return self.store.get(key)


class RestartLosesSessions(Mutant):
    found_by = "store-restarted"

    async def restart(self) -> None:
        for session in self.store.sessions:
            self.store.expire(session)
        await super().restart()


class ExpiryByTheWallClock(Mutant):
    found_by = "store-wall-clock"

    class server(MemoryStore):  # noqa: N801
        began = time.time() - time.monotonic()

        def _expire_due(self) -> None:
            drift = time.time() - time.monotonic() - self.began
            now = asyncio.get_running_loop().time() + drift
            for session_id in [session for session, deadline in self._deadlines.items() if deadline <= now]:
                self.expire(session_id)


class DeletingSaysTrueWhateverWasThere(Mutant):
    found_by = "model-agreement"

    class at_client(MemoryBackend):  # noqa: N801
        async def delete(self, key: str, *, expect: Expectation = ANY) -> bool:
            return await super().delete(key, expect=expect) or key == "b/~0"


class WatchOfOnePrefixShowsAnother(Mutant):
    found_by = "model-agreement"

    class server(MemoryStore):  # noqa: N801
        def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
            return super().changes(prefix.rstrip("/") if position >= 0 else prefix, position)


class SessionEndsOnlyItsLastKey(Mutant):
    found_by = "model-agreement"

    class server(MemoryStore):  # noqa: N801
        def expire(self, session_id: str) -> None:
            held = [key for key, entry in self._entries.items() if entry.session == session_id]
            for key in held[:-1]:
                self._entries[key] = dataclasses.replace(self._entries[key], session=None)
            super().expire(session_id)


class LocalMutant(LocalHarness):
    """An embedded store with a faulty client; its peers are processes with the same fault."""

    patience = 0.1
    found_by: ClassVar[str]


class ProcessesIgnoreGuards(LocalMutant):
    found_by = "election-stale-leader-fenced"

    @property
    def backend(self) -> str:
        return f"{__name__}:UnguardedLocal"


class UnguardedLocal(LocalBackend):
    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        return await super().txn([check for check in checks if not check.fences], ops)


class ProcessesResurrect(LocalMutant):
    """A process whose session has ended continues to write with a new session."""

    patience = 0.1
    found_by = "session-stopped-process"

    @property
    def backend(self) -> str:
        return f"{__name__}:ResurrectingLocal"


class ResurrectingLocal(LocalBackend):
    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        try:
            return await super().txn(checks, ops)
        except CoordinationError:
            again = await self.open_session(60_000)
            ops = [dataclasses.replace(op, session=again) if isinstance(op, Put) and op.session else op for op in ops]
            return await super().txn(checks, ops)


def mutants() -> list[type[Harness]]:
    """Return all mutants."""
    return [
        each
        for each in globals().values()
        if isinstance(each, type) and issubclass(each, Mutant | LocalMutant) and "found_by" in vars(each)
    ]


def found_by(mutant: type[Harness]) -> str:
    """The check that must find the mutant."""
    assert issubclass(mutant, Mutant | LocalMutant)
    return mutant.found_by
