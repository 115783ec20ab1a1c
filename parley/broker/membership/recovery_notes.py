"""Notes in the store about brokers that are opening their logs, which can take a long time after a crash.

Such a broker is not registered and serves no clients, so it cannot be queried. It writes its progress to the store. The
note is bound to a separate session, so that it disappears with the broker. The controller reads the notes for
DescribeBackgroundWork (``parley.broker.api.background_work``). Nothing else depends on them: a note that cannot be
written is left out.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from random import Random
from typing import Final, Self

from parley.broker.runtime.tasks import TaskSet
from parley.consensus.backend import Backend, Session
from parley.consensus.errors import CoordinationError
from parley.consensus.recipes.keyvalue import KeyValue
from parley.light_dataclasses import dataclass

RECOVERIES: Final = "recoveries/"
_TTL_MS: Final = 30_000
_WRITE_MAX_S: Final = 5.0
_CLOSE_MAX_S: Final = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryNote:
    """The progress of one broker: it has opened ``opened`` of its ``logs`` logs in ``elapsed_ms``."""

    broker_id: int
    opened: int
    logs: int
    elapsed_ms: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the note that ``encode`` encoded.

        Raises ValueError, KeyError or TypeError if another version of Parley has written the note in another form.
        """
        found = json.loads(data)
        return cls(*(int(found[name]) for name in ("broker_id", "opened", "logs", "elapsed_ms")))


async def read_notes(store: Backend, rng: Random) -> list[RecoveryNote]:
    """Return the notes of all brokers that are opening their logs. Malformed notes are skipped.

    Raises CoordinationError if the store cannot be read.
    """
    notes = []
    async for entry in KeyValue(store, rng).entries(RECOVERIES):
        try:
            notes.append(RecoveryNote.decode(entry.value))
        except (ValueError, KeyError, TypeError):
            _log.warning("ignoring a malformed note about a recovery", extra={"key": entry.key})
    return notes


class RecoveryNotes:
    """Writes the notes of one broker. ``close`` it when the logs are open."""

    def __init__(self, store: Backend, rng: Random, broker_id: int, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._rng = rng
        self._broker_id = broker_id
        self._monotonic = monotonic
        self._began_s = monotonic()
        self._session: Session | None = None
        self._tasks = TaskSet()

    def tell(self, opened: int, logs: int) -> None:
        """Write in the background that ``opened`` of the ``logs`` logs are open.

        Does nothing while the previous note is still being written. If the note cannot be written, this is only logged.
        """
        if not len(self._tasks):
            elapsed_ms = round(1000 * (self._monotonic() - self._began_s))
            note = RecoveryNote(self._broker_id, opened, logs, elapsed_ms)
            self._tasks.start(self._write(note), name="note about the recovery of logs")

    async def _write(self, note: RecoveryNote) -> None:
        try:
            async with asyncio.timeout(_WRITE_MAX_S):
                if self._session is None:
                    self._session = await self._store.open_session(_TTL_MS)
                key = f"{RECOVERIES}{self._broker_id}"
                await KeyValue(self._store, self._rng).put(key, note.encode(), session=self._session)
        except (CoordinationError, TimeoutError) as error:
            self._session = None  # if it is still alive, it will expire in the store
            _log.info("the progress of opening logs was not written to the store: %s", error or type(error).__name__)

    async def close(self) -> None:
        """Remove the note, by ending its session."""
        await self._tasks.close()
        session, self._session = self._session, None
        if session is not None:
            try:
                async with asyncio.timeout(_CLOSE_MAX_S):
                    await session.close()
            except (CoordinationError, TimeoutError):
                pass  # the session will expire in the store
