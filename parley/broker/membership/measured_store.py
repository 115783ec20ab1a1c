"""Measures what this broker does with its coordination store: every call, every event and the session.

``StoreCounts`` contains the counts for all stores that the broker opens one after the other. ``MeasuredBackend`` passes
every call on to the real backend and counts it, including the calls of ``parley.consensus.recipes``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self

from parley.broker.membership.store_outage import StoreOutage
from parley.broker.metrics.catalogue.coordination import (
    StoreCallMetrics,
    StoreErrorMetrics,
    StoreMetrics,
    StoreSessionMetrics,
)
from parley.broker.metrics.registry import Labeled
from parley.consensus.backend import (
    ANY,
    LINEARIZABLE,
    Backend,
    Capabilities,
    Check,
    Entry,
    Event,
    Expectation,
    Op,
    Page,
    Read,
    Revision,
    Session,
    SessionState,
    Snapshot,
    TxnResult,
    Watch,
    WatchCount,
)
from parley.consensus.errors import (
    CoordinationError,
    Lost,
    PreconditionFailed,
)
from parley.consensus.protection import Protection
from parley.consensus.registry import BackendFactory, create_backend

CANCELLED: Final = "Cancelled"
"""The kind of error for a call that its caller cancelled, usually because of a time limit."""


class StoreCounts:
    """Everything that this broker has measured about its stores since it started. Used only on the event loop."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.calls: defaultdict[str, StoreCallMetrics] = defaultdict(StoreCallMetrics)
        self.errors: defaultdict[tuple[str, str], StoreErrorMetrics] = defaultdict(StoreErrorMetrics)
        self.session = StoreSessionMetrics()
        self.in_progress = 0
        self.watch_restarts = 0
        self._contact_s = monotonic()
        self._session: Session | None = None
        self._session_since_s = 0.0
        self._in_use: tuple[Backend | None, float] = (None, 0.0)

    @asynccontextmanager
    async def call(self, operation: str) -> AsyncIterator[None]:
        """Count the body of the ``with`` block as one call to the store."""
        began = self._monotonic()
        self.in_progress += 1
        try:
            yield
        except asyncio.CancelledError:
            self.errors[operation, CANCELLED].errors += 1
            raise
        except CoordinationError as error:
            self.errors[operation, type(error).__name__].errors += 1
            if isinstance(error, PreconditionFailed | Lost):
                self.contact()
            raise
        else:
            self.contact()
        finally:
            self.in_progress -= 1
            self.calls[operation].duration.observe(int(1e6 * (self._monotonic() - began)))

    def contact(self) -> None:
        """Record that the store has just responded."""
        self._contact_s = self._monotonic()

    def session_opened(self, session: Session) -> None:
        """Follow the states of a session that has just been opened."""
        self._session, self._session_since_s = session, self._monotonic()
        self.session.opened += 1
        session.add_callback(self._session_changed)

    def session_closing(self, session: Session) -> None:
        """Record that this broker is about to close the session, so that its end does not count as a loss."""
        session.remove_callback(self._session_changed)
        if session is self._session:
            self._session = None

    def _session_changed(self, state: SessionState) -> None:
        match state:
            case SessionState.SUSPENDED:
                self.session.interruptions += 1
            case SessionState.CONNECTED:
                self.session.reconnections += 1
                self.contact()
            case SessionState.LOST:
                self.session.expirations += 1

    # --- For the exporter ---

    def store_metrics(self, store: Backend, outage: StoreOutage) -> Iterable[Labeled]:
        """Return the metrics of the store that the cluster currently uses."""
        now = self._monotonic()
        if self._in_use[0] is not store:
            self._in_use = store, now
        contact_s = self._contact_s
        if self._session is not None:
            contact_s = max(contact_s, now - self._session.unrenewed_s)
        numbers = StoreMetrics(
            responds=outage.duration_s is None,
            in_charge_seconds=now - self._in_use[1],
            outage_seconds=outage.duration_s or 0.0,
            since_contact_seconds=now - contact_s,
            calls_in_progress=self.in_progress,
            outages=outage.count,
            watch_restarts=self.watch_restarts,
        )
        return [((store.capabilities.name,), numbers)]

    def call_metrics(self) -> Iterable[Labeled]:
        """Return the number and duration of the calls, by operation."""
        return [((operation,), numbers) for operation, numbers in self.calls.items()]

    def error_metrics(self) -> Iterable[Labeled]:
        """Return the number of failed calls, by operation and kind of error."""
        return list(self.errors.items())

    def session_metrics(self) -> Iterable[Labeled]:
        """Return the metrics of the current session, and the totals of all sessions so far."""
        session, numbers = self._session, self.session
        has_one = session is not None and session.state is not SessionState.LOST
        numbers.connected = session is not None and session.state is SessionState.CONNECTED
        numbers.age_seconds = self._monotonic() - self._session_since_s if has_one else 0.0
        numbers.ttl_seconds = session.ttl_ms / 1000 if session is not None else 0.0
        return [((), numbers)]


def measured(backend_at: BackendFactory, counts: StoreCounts) -> BackendFactory:
    """Return a factory whose backends count their calls in ``counts``."""

    async def measured_backend_at(url: str) -> Backend:
        return MeasuredBackend(await backend_at(url), counts)

    return measured_backend_at


class MeasuredBackend(Backend):
    """A backend that passes on every call and counts it."""

    def __init__(self, backend: Backend, counts: StoreCounts) -> None:
        self.backend = backend
        self._counts = counts

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        return cls(create_backend(url, **options), StoreCounts(asyncio.get_running_loop().time))

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    @property
    def identity(self) -> str:
        return self.backend.identity

    @property
    def is_shared(self) -> bool:
        return self.backend.is_shared

    async def open(self, *, expect_identity: str | None = None) -> None:
        async with self._counts.call("open"):
            await self.backend.open(expect_identity=expect_identity)

    async def close(self) -> None:
        await self.backend.close()

    async def abandon(self) -> None:
        await self.backend.abandon()

    async def open_session(self, ttl_ms: int) -> Session:
        async with self._counts.call("open_session"):
            return await self.backend.open_session(ttl_ms)

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        async with self._counts.call("get"):
            return await self.backend.get(key, read=read)

    async def put(
        self, key: str, value: bytes, *, expect: Expectation = ANY, session: Session | None = None
    ) -> Revision:
        async with self._counts.call("put"):
            return await self.backend.put(key, value, expect=expect, session=session)

    async def delete(self, key: str, *, expect: Expectation = ANY) -> bool:
        async with self._counts.call("delete"):
            return await self.backend.delete(key, expect=expect)

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        async with self._counts.call("list"):
            return await self.backend.list(prefix, limit=limit, after=after, read=read)

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        async with self._counts.call("txn"):
            return await self.backend.txn(checks, ops)

    def watch(self, prefix: str) -> Watch:
        return _MeasuredWatch(self.backend.watch(prefix), self._counts)

    async def watch_count(self) -> WatchCount:
        return await self.backend.watch_count()

    async def protection(self) -> Protection:
        return await self.backend.protection()


class _MeasuredWatch(Watch):
    """A watch that counts its events in ``StoreCounts``."""

    def __init__(self, watch: Watch, counts: StoreCounts) -> None:
        self._watch = watch
        self._counts = counts
        self._has_begun = False

    async def _next(self) -> Event:
        event = await anext(self._watch)
        self._counts.contact()
        if isinstance(event, Snapshot):
            self._counts.watch_restarts += self._has_begun
            self._has_begun = True
        return event

    async def close(self) -> None:
        await self._watch.close()
