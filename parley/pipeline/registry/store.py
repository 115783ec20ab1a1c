"""The registry's topic: every instance reads it, and one at a time writes to it.

Rules:

1. All instances share one transactional id. An instance that must write claims it, which fences the previous writer and
   ends its transaction. Then it reads the topic to its end, so it knows everything that was ever written. It stays the
   writer, and need not claim the id again, until another instance claims it. There is no leader to find, and no request
   is forwarded from instance to instance.
2. If the writer is fenced during a change, the change is decided again, on the newer state.
3. Readers that do not skip aborted transactions (such as Confluent's registry) apply their records. Therefore a new
   writer first writes the keys of these records again, with the valid values (``aborted_records``).
4. A read that finds nothing is repeated after the topic was read to its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

from parley.pipeline.connect.distributed.leader_writes import TransactionalWrites
from parley.pipeline.connect.distributed.log import Keyed, TopicLog
from parley.pipeline.registry.aborted_records import records_again
from parley.pipeline.registry.decisions import Change
from parley.pipeline.registry.errors import RegistryError
from parley.pipeline.registry.state import Record, State
from parley.protocol.errors import ErrorCode, KafkaError

_TRIES_MAX: Final = 20
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
_SECONDS: Final = 60.0
"""How long a change may take: longer than the transaction of a killed writer can delay it."""
_REFRESH_SECONDS: Final = 5.0
_FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
_log = logging.getLogger(__name__)


class Store:
    """One instance's state, read from the registry's topic, and its changes, written to that topic.

    Many requests may call ``change`` at the same time.
    """

    def __init__(self, log: TopicLog, writes: TransactionalWrites, random: Random) -> None:
        self.state = State()
        self._log = log
        self._writes = writes
        self._random = random
        self._turn = asyncio.Lock()
        self._is_writer = False
        self._values: dict[bytes, bytes | None] = {}
        self._aborted: set[bytes] = set()

    async def start(self) -> None:
        """Read the topic, and follow it. Creates the topic if it does not exist. Raises ConnectError and KafkaError."""
        await self._writes.claim()  # the open transaction of a killed writer would delay reading
        await self._log.start(self._read, self._read_aborted)

    async def stop(self) -> None:
        """Close the connections."""
        await self._log.stop()
        await self._writes.stop()

    async def refresh(self) -> None:
        """Read everything that is in the topic now, but give up after a while.

        The open transaction of a killed writer delays this. Nothing after the beginning of that transaction is
        confirmed, so in that case the state already read is enough.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_REFRESH_SECONDS):
                await self._log.read_to_end()

    async def change(self, decide: Callable[[State], Awaitable[Change]]) -> Any:
        """Call ``decide`` with the newest state, write the records of its result, and return its reply once they are
        read back.

        If another instance writes at the same time, ``decide`` is called again. Raises RegistryError: that of
        ``decide``; 42209 if the topic does not accept a record of this size; 50001 if the cluster does not accept the
        records; 50002 if it takes too long, so that the outcome is unknown.
        """
        try:
            async with asyncio.timeout(_SECONDS), self._turn:
                return await self._change(decide)
        except TimeoutError:
            self._is_writer = False
            raise RegistryError(
                50002, f"The change did not complete within {_SECONDS:g} s; its outcome is unknown"
            ) from None

    async def _change(self, decide: Callable[[State], Awaitable[Change]]) -> Any:
        pause = _PAUSE_S
        for _ in range(_TRIES_MAX):
            try:
                if self._is_writer:
                    await self._log.read_to_end()  # another instance may have fenced this one
                else:
                    await self._claim()
                change = await decide(self.state)
                if change.records:
                    await self._write(change.records)
                return change.reply
            except KafkaError as error:
                self._is_writer = False
                if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                    raise RegistryError(42209, f"Schema is too large for the topic of schemas: {error}") from error
                if error.code not in _FENCED:
                    raise RegistryError(50001, f"Error in the backend data store: {error}") from error
            await asyncio.sleep(pause * (0.5 + self._random.random()))
            pause = min(2 * pause, _PAUSE_MAX_S)
        raise RegistryError(50001, "Other instances of the registry keep writing; try again")

    async def _claim(self) -> None:
        await self._writes.claim()
        await self._log.read_to_end()
        if self._aborted:
            again = records_again(self._aborted, self._values, self.state)
            _log.info("overwriting the records of an aborted transaction with %d records", len(again))
            await self._write(again)
        self._is_writer = True

    async def _write(self, records: Sequence[Record]) -> None:
        await self._writes.send(records)
        await self._log.read_to_end()

    def _read(self, record: Keyed) -> None:
        self._aborted.discard(record.key)
        self._values[record.key] = record.value
        self.state.apply(record.key, record.value)

    def _read_aborted(self, record: Keyed) -> None:
        self._aborted.add(record.key)
