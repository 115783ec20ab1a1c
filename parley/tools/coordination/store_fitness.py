"""The fitness of a store for a cluster: tests its guarantees and measures its latencies.

Everything happens below a scratch folder that is removed afterwards. Nothing else is read or written, except that an
empty store receives an identity. The conformance kit (``python -m parley.consensus.conformance``) is the complete
test. This one takes a few seconds and may run on a store in use.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from parley.consensus.backend import ABSENT, PRESENT, At, Backend, Changed, Check, Put, Removed, Session, Snapshot
from parley.consensus.errors import AlreadyExists, Conflict, CoordinationError, Fenced, SessionLost
from parley.consensus.protection import Protection

WRITES = 50
PARALLEL = 200
SESSION_MS = 6000
GOOD_P99_S = 0.1
"""The 99th percentile of write times, in seconds, above which writes noticeably delay the creation of topics and
changes of leaders."""
BAD_P99_S = 1.0
"""The 99th percentile of write times, in seconds, above which brokers lose their sessions under load."""
SLOW_NOTICE_S = 1.0
NEEDED_VALUE_BYTES = 64 * 1024
"""The size of values, in bytes, that a store must accept: enough for a hundred partitions with many replicas."""
LONG_TTL_MS = 9000
"""Kafka's default of ``broker.session.timeout.ms``. A store with a longer minimum detects a hanging broker later than
Kafka."""


class Broken(Exception):
    """Raised if the store violates a guarantee that a cluster needs. The text names the guarantee."""


@dataclass(slots=True)
class Found:
    """The findings about a store. ``problems`` prevent a cluster from running, ``remarks`` from running well."""

    identity: str = ""
    passed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    latencies_ms: dict[str, float] = field(default_factory=dict)
    protection: Protection | None = None

    @property
    def verdict(self) -> str:
        """The findings in one sentence."""
        if self.problems:
            return f"A cluster would not run on this store: {'; '.join(self.problems)}."
        if self.remarks:
            return f"A cluster would run on this store, but: {'; '.join(self.remarks)}."
        return "A cluster would run well on this store."

    def as_data(self, url: str) -> dict[str, Any]:
        """Return the findings as JSON data."""
        return {
            "store": url,
            "identity": self.identity,
            "runs": not self.problems,
            "runsWell": not self.problems and not self.remarks,
            "passed": self.passed,
            "problems": self.problems,
            "remarks": self.remarks,
            "latenciesMs": self.latencies_ms,
            "protection": {} if self.protection is None else protection_as_data(self.protection),
        }


def protection_as_data(protection: Protection) -> dict[str, dict[str, str]]:
    """Return what protects a store from other clients, as JSON data."""
    found = {"tree": protection.tree, "connection": protection.connection}
    return {
        name: {"state": finding.guard.value, "text": finding.text, "advice": finding.advice}
        for name, finding in found.items()
    }


async def check(backend: Backend, connected_s: float) -> Found:
    """Test an open store. Problems are in the result, not raised. ``connected_s`` is how many seconds opening it took.

    Raises CoordinationError if the scratch folder cannot be removed, or if the store's protection cannot be read.
    """
    found = Found(identity=backend.identity, latencies_ms={"connect": _ms(connected_s)})
    folder = f"scratch/{secrets.token_hex(8)}"
    try:
        await _try(found, "sessions", _sessions(backend, folder))
        for name, probe in _PROBES.items():
            await _try(found, name, probe(backend, folder, found))
    finally:
        await _clean(backend, folder)
    _judge(found, backend)
    found.protection = await backend.protection()
    return found


async def _try(found: Found, name: str, work: Awaitable[None]) -> None:
    try:
        await work
        found.passed.append(name)
    except Broken as broken:
        found.problems.append(f"{name}: {broken}")
    except (CoordinationError, TimeoutError) as error:
        found.problems.append(f"{name}: {type(error).__name__}: {error}")


async def _clean(backend: Backend, folder: str) -> None:
    while keys := (await backend.list(f"{folder}/", limit=1000)).entries:
        for entry in keys:
            await backend.delete(entry.key)


def _judge(found: Found, backend: Backend) -> None:
    limits = backend.capabilities
    p99 = found.latencies_ms.get("writeP99", 0) / 1000
    if p99 > BAD_P99_S:
        found.problems.append(f"a write takes up to {p99:.1f} s: brokers would lose their sessions under load")
    elif p99 > GOOD_P99_S:
        found.remarks.append(f"a write takes up to {_ms(p99):g} ms, and so does every change to a leader or a topic")
    if found.latencies_ms.get("notice", 0) / 1000 > SLOW_NOTICE_S:
        found.remarks.append(f"a watch reports changes only after {found.latencies_ms['notice']:g} ms")
    if limits.value_bytes_max < NEEDED_VALUE_BYTES:
        found.problems.append(f"a value may be {limits.value_bytes_max} bytes at most; {NEEDED_VALUE_BYTES} are needed")
    if not backend.is_shared:
        found.remarks.append("it exists only in its broker's process, so no other broker can use it")
    if limits.ttl_ms_min > LONG_TTL_MS:
        longest = limits.ttl_ms_min * limits.expiry_factor_max / 1000
        found.remarks.append(
            f"sessions last at least {limits.ttl_ms_min / 1000:g} s: a broker that hangs may count as alive for "
            f"{longest:g} s (a killed broker is detected immediately)"
        )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


async def _timed(work: Callable[[int], Awaitable[object]], times: int) -> list[float]:
    """Make several calls one after another. Returns their durations in seconds, sorted."""
    loop, taken = asyncio.get_running_loop(), []
    for at in range(times):
        begun = loop.time()
        await work(at)
        taken.append(loop.time() - begun)
    return sorted(taken)


def _percentiles(found: Found, name: str, taken: Sequence[float]) -> None:
    found.latencies_ms[f"{name}P50"] = _ms(taken[len(taken) // 2])
    found.latencies_ms[f"{name}P99"] = _ms(taken[min(len(taken) - 1, len(taken) * 99 // 100)])


# --- The tests ---


async def _sessions(backend: Backend, folder: str) -> None:
    """Check that a key is deleted with its session, and that a write bound to an ended session is rejected. Raises
    Broken."""
    session: Session = await backend.open_session(SESSION_MS)
    await backend.put(f"{folder}/bound", b"", session=session)
    await session.close()
    if await backend.get(f"{folder}/bound") is not None:
        raise Broken("a key outlives its session")
    try:
        await backend.put(f"{folder}/late", b"", session=session)
    except SessionLost:
        return
    raise Broken("a write bound to an ended session is accepted")


async def _writes(backend: Backend, folder: str, found: Found) -> None:
    """Measure the durations of writes and reads, and record their percentiles."""
    taken = await _timed(lambda at: backend.put(f"{folder}/w{at % 10}", b"x" * 512), WRITES)
    _percentiles(found, "write", taken)
    _percentiles(found, "read", await _timed(lambda at: backend.get(f"{folder}/w{at % 10}"), WRITES))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await asyncio.gather(*(backend.put(f"{folder}/p{at % 40}", b"x" * 512) for at in range(PARALLEL)))
    found.latencies_ms["parallelWrite"] = _ms((loop.time() - begun) / PARALLEL)


async def _conditions(backend: Backend, folder: str, found: Found) -> None:
    """Check that a transaction whose condition does not hold changes nothing. Raises Broken."""
    key, other = f"{folder}/condition", f"{folder}/other"
    first = await backend.put(key, b"1", expect=ABSENT)
    second = await backend.put(key, b"2", expect=At(first))
    refusals: list[tuple[Check, type[Exception]]] = [
        (Check(key, ABSENT), AlreadyExists),
        (Check(key, At(first)), Conflict),
        (Check(other, PRESENT, fences=True), Fenced),
    ]
    for condition, expected in refusals:
        try:
            await backend.txn([condition], [Put(key, b"3"), Put(other, b"3")])
        except expected:
            continue
        raise Broken("a transaction was applied although its condition did not hold")
    entry = await backend.get(key)
    if entry is None or entry.revision != second or await backend.get(other) is not None:
        raise Broken("a rejected transaction has changed something")


async def _large(backend: Backend, folder: str, found: Found) -> None:
    """Check that a value as large as a cluster may need can be stored and read. Raises Broken."""
    value = secrets.token_bytes(min(NEEDED_VALUE_BYTES, backend.capabilities.value_bytes_max))
    await backend.put(f"{folder}/large", value)
    entry = await backend.get(f"{folder}/large")
    if entry is None or entry.value != value:
        raise Broken("a large value does not read back as it was written")


async def _watches(backend: Backend, folder: str, found: Found) -> None:
    """Check that a watch reports changes, and measure how soon. Raises Broken, or TimeoutError after 30 s."""
    loop, taken = asyncio.get_running_loop(), []
    async with asyncio.timeout(30), backend.watch(f"{folder}/heard") as watch:
        if not isinstance(await anext(watch), Snapshot):
            raise Broken("a watch does not begin with a snapshot")
        for at in range(10):
            begun = loop.time()
            await backend.put(f"{folder}/heard", b"%d" % at)
            while not _reports(await anext(watch), b"%d" % at):
                pass
            taken.append(loop.time() - begun)
        await backend.delete(f"{folder}/heard")
        while not isinstance(event := await anext(watch), Removed):
            if isinstance(event, Snapshot) and not event.entries:
                break
    found.latencies_ms["notice"] = _ms(max(taken))


def _reports(event: object, value: bytes) -> bool:
    match event:
        case Changed(entry):
            return entry.value == value
        case Snapshot(entries):
            return any(entry.value == value for entry in entries)
    return False


_PROBES: dict[str, Callable[[Backend, str, Found], Awaitable[None]]] = {
    "reads and writes": _writes,
    "conditions": _conditions,
    "large values": _large,
    "watches": _watches,
}
