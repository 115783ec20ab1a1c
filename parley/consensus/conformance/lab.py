"""The definition of a check, and the laboratory in which it runs: clients, peers, deadlines, measurements.

A check is a function that returns if the property holds and raises ``Broken`` if not. Any other exception is also a
failure, and so is an attempt to skip. Assertions are function calls, not statements, so that ``python -O`` does not
remove them.
"""

from __future__ import annotations

import asyncio
import random
import resource
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from parley.consensus.backend import Backend, Removed, Snapshot, Watch
from parley.consensus.conformance.harness import Harness, Peer
from parley.consensus.recipes.listeners import View

_T = TypeVar("_T")
LONG_TTL_MS = 60_000
"""The TTL, in milliseconds, of sessions that must not expire while a check runs."""


class Broken(AssertionError):
    """Raised by a check if the store lacks the property that the check tests."""


def require(holds: object, message: str) -> None:
    """Raise Broken with this message unless the condition holds."""
    if not holds:
        raise Broken(message)


def equal(found: object, expected: object, what: str) -> None:
    """Raise Broken if the two values differ. ``what`` describes them in the message."""
    if found != expected:
        raise Broken(f"{what}: expected {_short(expected)}, found {_short(found)}")


@asynccontextmanager
async def refused(kind: type[Exception] | tuple[type[Exception], ...], what: str) -> AsyncIterator[None]:
    """Raise Broken unless the ``with`` block raises an exception of this type, or of one of these types.

    ``what`` describes the block in the message.
    """
    expected = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
    try:
        yield
    except kind:
        return
    except Exception as error:
        raise Broken(f"{what}: expected {expected}, got {error!r}") from error
    raise Broken(f"{what}: expected {expected}, but it succeeded")


@dataclass(frozen=True, slots=True)
class Measure:
    """A measurement of a check: its value, its unit, and the limit that the store declares, if any."""

    what: str
    value: float
    unit: str
    bound: float | None = None

    def __str__(self) -> str:
        bound = f" (declared: {self.bound:.4g})" if self.bound is not None else ""
        return f"{self.what} {self.value:.4g} {self.unit}{bound}"


@dataclass(frozen=True, slots=True)
class Check:
    """A named property of stores, and the function that tests it."""

    name: str
    """A unique name, such as ``watch-order``."""
    promise: str
    """The property, in one sentence."""
    slow: bool
    """True if it takes more than about two seconds on a fast store."""
    run: Callable[[Lab], Coroutine[Any, Any, None]] | None = None
    run_alone: Callable[[Harness], None] | None = None
    """Used instead of ``run`` by a check that itself starts and stops stores and event loops."""


CHECKS: dict[str, Check] = {}


def check(
    name: str, *, slow: bool = False
) -> Callable[[Callable[[Lab], Coroutine[Any, Any, None]]], Callable[[Lab], Coroutine[Any, Any, None]]]:
    """Return a decorator that registers a function as a check. The function's docstring is the check's promise."""

    def declare(run: Callable[[Lab], Coroutine[Any, Any, None]]) -> Callable[[Lab], Coroutine[Any, Any, None]]:
        register(Check(name, " ".join((run.__doc__ or "").split()), slow, run=run))
        return run

    return declare


def register(declared: Check) -> None:
    """Add a check that every store must pass. Raises ValueError if another check has the same name."""
    if declared.name in CHECKS:
        raise ValueError(f"two checks are named {declared.name}")
    CHECKS[declared.name] = declared


@dataclass(slots=True)
class Lab:
    """One run of one check on a fresh store."""

    harness: Harness
    name: str
    rng: random.Random = field(init=False)
    """Random numbers, seeded with the name of the check."""
    measures: list[Measure] = field(default_factory=list)
    """The measurements of the check."""
    _clients: list[Backend] = field(default_factory=list)
    _peers: list[Peer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(zlib.crc32(self.name.encode()))

    async def client(self) -> Backend:
        """Open a new client of the store. It is closed at the end of the check."""
        client = self.harness.client()
        self._clients.append(client)
        await self.within(30, client.open(), "opening a client")
        return client

    async def peer(self, role: str, **arguments: Any) -> Peer:
        """Start a peer in one of the roles of ``conformance.roles``. It is killed at the end of the check."""
        peer = await self.harness.peer(role, arguments)
        self._peers.append(peer)
        return peer

    async def close(self) -> None:
        """Kill the peers and close the clients."""
        for peer in self._peers:
            await peer.kill()
        for client in self._clients:
            await self.harness.restore(client)
            await self.within(30, client.close(), "closing a client")

    def measured(self, what: str, value: float, unit: str, bound: float | None = None) -> None:
        """Record a measurement for the report. Of several with the same name, the largest is kept."""
        for n, measure in enumerate(self.measures):
            if measure.what == what:
                self.measures[n] = Measure(what, max(value, measure.value), unit, bound)
                return
        self.measures.append(Measure(what, value, unit, bound))

    def bounded(self, what: str, seconds: float, declared_ms: float) -> None:
        """Record a time with a declared limit. Raises Broken if it exceeds the limit by more than the allowance."""
        self.measured(what, seconds * 1000, "ms", declared_ms)
        limit = declared_ms / 1000 + self.harness.allowance_s
        require(seconds <= limit, f"{what} took {seconds * 1000:.0f} ms; the store declares {declared_ms:.0f} ms")

    async def within(self, seconds: float, awaitable: Awaitable[_T], what: str) -> _T:
        """Await something that must happen, and return its result.

        Raises Broken if it takes longer than ``seconds``, multiplied by the harness's ``patience``.
        """
        try:
            return await asyncio.wait_for(awaitable, seconds * self.harness.patience)
        except TimeoutError:
            _give_up(what, seconds * self.harness.patience)

    async def said(self, peer: Peer, first: str, seconds: float = 60) -> list[Any]:
        """Wait for the peer's next message, which must begin with ``first``. Returns the rest of the message.

        Raises Broken if another message arrives, if the peer ends, or if nothing arrives within ``seconds``.
        """
        try:
            words = await self.within(seconds, peer.said(), f"the peer's message {first!r}")
        except EOFError as error:
            raise Broken(f"expected the message {first!r} of a peer: {error}") from error
        equal(words[:1], [first], f"the peer's message ({words})")
        return words[1:]

    async def gone(self, client: Backend, key: str, seconds: float) -> float:
        """Wait until a watch shows that a key is deleted. Returns the loop time at which a read has confirmed it.

        Raises Broken if that does not happen within ``seconds``, or if the key can still be read afterwards.
        """
        async with client.watch(key) as watch:
            await self.within(seconds, self._seen_gone(watch, key), f"the deletion of {key}")
        equal(await client.get(key), None, f"{key} after its removal was seen")
        return asyncio.get_running_loop().time()

    async def _seen_gone(self, watch: Watch, key: str) -> None:
        async for event in watch:
            if event == Removed(key) or (isinstance(event, Snapshot) and key not in {e.key for e in event.entries}):
                return

    async def there(self, client: Backend, key: str, seconds: float = 60) -> None:
        """Wait until a watch shows that a key is present. Raises Broken if that does not happen within ``seconds``."""

        async def seen(watch: Watch) -> None:
            view = View()
            while key not in view.entries:
                view.apply(await anext(watch))

        async with client.watch(key) as watch:
            await self.within(seconds, seen(watch), f"{key}")

    async def follow(self, watch: Watch, view: View, expected: dict[str, bytes], seconds: float = 30) -> None:
        """Apply the events of a watch to a view until the view shows these values.

        Raises Broken if that does not happen within ``seconds``.
        """

        def differs(view: View) -> bool:
            return {key: entry.value for key, entry in view.entries.items()} != expected

        async def catch_up() -> None:
            while len(view.entries) != len(expected) or differs(view):
                view.apply(await anext(watch))

        try:
            await asyncio.wait_for(catch_up(), seconds * self.harness.patience)
        except TimeoutError:
            found = {key: entry.value for key, entry in view.entries.items()}
            raise Broken(f"the watch never showed what is stored: {differences(found, expected)}") from None


def differences(found: dict[str, bytes], expected: dict[str, bytes]) -> str:
    """Describe a few of the keys on which two states differ."""
    keys = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
    shown = (f"{key} is {_short(found.get(key))} instead of {_short(expected.get(key))}" for key in keys[:3])
    return f"{len(keys)} keys differ: {'; '.join(shown)}"


async def everything(client: Backend, prefix: str = "", limit: int = 1000) -> dict[str, bytes]:
    """Return all keys and values below a prefix, read in pages of at most ``limit`` entries."""
    found: dict[str, bytes] = {}
    after: str | None = None
    while True:
        page = await client.list(prefix, limit=limit, after=after)
        found.update((entry.key, entry.value) for entry in page.entries)
        if (after := page.next_after) is None:
            return found


def resident_bytes() -> int:
    """Return how much memory of this process is in RAM, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def _give_up(what: str, seconds: float) -> NoReturn:
    raise Broken(f"{what} did not happen within {seconds:.1f} s") from None
