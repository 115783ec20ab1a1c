"""The schemas with which the console decodes records, from a schema registry and from files.

Rules: a request waits for a registry for at most ``WAIT_S``, while other requests continue. A look-up that takes longer
continues in its thread, and later requests use its result. A failure is remembered too, for a shorter time. The number
of schemas and of look-ups is bounded. A value that cannot be decoded has a ``problem``, a sentence for the user.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from parley.broker.runtime.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from parley.pipeline.schemas.client import Settings
    from parley.pipeline.schemas.plain import Read

WAIT_S: Final = 3.0
CACHED: Final = 1000
_PENDING_MAX: Final = 64
_AT_ONCE: Final = 4
_AWAY_S: Final = 5.0
"""The time, in seconds, for which a registry that did not respond is not queried again."""
_REFUSED_S: Final = 30.0
_FOREVER: Final = float("inf")
_UNTRIED: Final = "Too many schemas are looked up at the moment. Search again."
_HEAD_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class FileSchema:
    """A schema from a file. The records that it describes contain no schema id."""

    name: str
    language: str
    read: Read = field(repr=False)


@dataclass(frozen=True, slots=True)
class SchemaSettings:
    """The sources of schemas: a registry, and files."""

    registry: Settings | None = None
    files: Mapping[tuple[str, bool], FileSchema] = field(default_factory=dict)
    """The schemas by topic, and by True for keys or False for values."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded value as JSON data, with the name of its schema. If ``problem`` is not empty, it says why the value
    cannot be decoded."""

    schema: str
    value: Any = None
    problem: str = ""


@dataclass(slots=True)
class _Known:
    """A schema of the registry, or the problem with it, or neither while it is being looked up."""

    begun: float
    until: float = _FOREVER
    language: str = ""
    read: Read | None = None
    problem: str = ""
    lookup: asyncio.Task[None] | None = None


class RecordSchemas:
    """The decoder of keys and values, with a cache of the registry's schemas. ``close`` ends the look-ups."""

    def __init__(self, settings: SchemaSettings) -> None:
        self._settings = settings
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._away_until, self._away = 0.0, ""

    async def close(self) -> None:
        """End the look-ups."""
        for one in self._known.values():
            if one.lookup is not None:
                one.lookup.cancel()
        await asyncio.gather(*(one.lookup for one in self._known.values() if one.lookup), return_exceptions=True)

    async def look_up(self, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Look up the registry's schemas of these keys and values, and wait for at most ``WAIT_S``. Failures are
        reported by ``decode``."""
        if self._settings.registry is None:
            return
        now = SYSTEM_CLOCK.monotonic()
        wanted = {
            number
            for record in records
            for data, is_key in zip(record, (True, False), strict=True)
            if (number := self._id_of(topic, data, is_key=is_key)) is not None
        }
        for number in wanted:
            if (known := self._known.get(number)) is None or known.until < now:
                self._begin(number, now)
        pending = [one for one in (self._known.get(number) for number in wanted) if one and one.lookup]
        waits = [one.begun + WAIT_S - now for one in pending]
        if pending and max(waits) > 0:
            await asyncio.wait([one.lookup for one in pending if one.lookup], timeout=max(waits))
            late = [one for one in pending if one.lookup is not None]
            if late and SYSTEM_CLOCK.monotonic() - now >= max(waits):
                self._leave_alone(f"The schema registry has not responded for {WAIT_S:g} s.")

    def decode(self, topic: str, data: bytes | None, *, is_key: bool) -> Decoded | None:
        """Return the decoded key or value, or why it cannot be decoded. Returns None if ``data`` is None, or if it
        names no schema. Call ``look_up`` first."""
        if data is None:
            return None
        if (file := self._settings.files.get((topic, is_key))) is not None:
            return _decoded(file.name, file.language, file.read, bytes(data), 0)
        number = self._id_of(topic, data, is_key=is_key)
        if number is None or self._settings.registry is None:
            return None
        known = self._known.get(number)
        name = f"schema {number}"
        if known is not None and known.read is not None:
            self._known.move_to_end(number)
            return _decoded(name, known.language, known.read, bytes(data), _HEAD_BYTES)
        problem = known.problem if known is not None else self._away or _UNTRIED
        return Decoded(name, problem=problem or f"The schema registry has not responded for {WAIT_S:g} s.")

    def _id_of(self, topic: str, data: bytes | None, *, is_key: bool) -> int | None:
        if data is None or len(data) < _HEAD_BYTES or data[0] != 0 or (topic, is_key) in self._settings.files:
            return None
        return int.from_bytes(data[1:_HEAD_BYTES], "big")

    # --- Look-ups ---

    def _begin(self, number: int, now: float) -> None:
        if now < self._away_until or sum(one.lookup is not None for one in self._known.values()) >= _PENDING_MAX:
            self._known.pop(number, None)
            return
        self._away = ""
        while len(self._known) >= CACHED:
            oldest = next(key for key, one in self._known.items() if one.lookup is None)
            del self._known[oldest]
        known = self._known[number] = _Known(now)
        known.lookup = asyncio.create_task(self._find(number, known))

    async def _find(self, number: int, known: _Known) -> None:
        from parley.pipeline.connect.distributed.blocking_calls import in_thread
        from parley.pipeline.schemas.client import RegistryAway, RegistryRefused

        try:
            async with self._slots:
                known.language, known.read = await in_thread(self._load, number)
        except RegistryAway as error:
            self._leave_alone(f"{error}.".replace("..", "."))
            known.problem, known.until = self._away, SYSTEM_CLOCK.monotonic() + _AWAY_S
        except RegistryRefused as error:
            is_unknown = " 404 " in f"{error}"
            known.problem = f"The schema registry has no schema {number}." if is_unknown else f"{error}."
            known.until = SYSTEM_CLOCK.monotonic() + _REFUSED_S
        except Exception as error:  # a library may raise any error for a schema
            known.problem = f"Schema {number} cannot be used: {error or type(error).__name__}."
            known.until = SYSTEM_CLOCK.monotonic() + _REFUSED_S
        finally:
            known.lookup = None

    def _load(self, number: int) -> tuple[str, Read]:
        from parley.pipeline.schemas.client import client_of
        from parley.pipeline.schemas.plain import reader

        assert self._settings.registry is not None
        client = client_of(self._settings.registry)
        schema = client.schema(number)
        return schema.type.value, reader(schema, client.load)

    def _leave_alone(self, problem: str) -> None:
        self._away_until, self._away = SYSTEM_CLOCK.monotonic() + _AWAY_S, problem


def _decoded(name: str, language: str, read: Read, data: bytes, begin: int) -> Decoded:
    schema = f"{LANGUAGES[language]}, {name}"
    try:
        return Decoded(schema, read(data, begin))
    except ValueError as error:
        return Decoded(schema, problem=f"The bytes do not fit {schema}: {error}.")


LANGUAGES: Final = {"AVRO": "Avro", "JSON": "JSON Schema", "PROTOBUF": "Protobuf"}
