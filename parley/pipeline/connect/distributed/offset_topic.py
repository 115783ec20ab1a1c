"""The offsets of source connectors in a compacted topic (``offset.storage.topic``), in Kafka Connect's format.

A key is ``["connector",{partition of the source}]``, and its value is the offset. A record without a value deletes the
offset. Two keys are equal if their JSON objects are, regardless of the order of fields. All records of a partition use
the bytes of its first key: otherwise compaction would keep two offsets.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from parley.pipeline.client.cluster import Connection
from parley.pipeline.connect.distributed.log import Keyed, Log
from parley.pipeline.connect.errors import ConnectError, RetriableError
from parley.pipeline.connect.offset_stores import OffsetStore, SourceOffset, key_of
from parley.pipeline.values.json_text import packed
from parley.protocol.errors import KafkaError

_STORE_SECONDS: Final = 120.0
"""The timeout of a write. It exceeds the time for which the transaction of a dead task stays open in the topic."""
_log = logging.getLogger(__name__)

T = TypeVar("T")


class TopicOffsetStore(OffsetStore):
    """Offsets in a log that belongs to ``loop``. Any thread except the loop's may call the methods.

    The methods raise ConnectError if the topic cannot be read or written; the error is a RetriableError if the cause
    may be temporary, for example if there is no response in time. ``open_log`` opens the log of another topic, given
    the connection to its cluster and its name. If this is the store of a connector's own topic, ``workers`` is the
    store of the worker's topic: it supplies offsets that the connector's topic lacks.
    """

    def __init__(
        self,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        open_log: Callable[[Connection, str], Log] | None = None,
        *,
        workers: TopicOffsetStore | None = None,
    ) -> None:
        super().__init__()
        self._log = log
        self._loop = loop
        self._open_log = open_log
        self._workers = workers
        self._others: dict[tuple[Connection, str], TopicOffsetStore] = {}
        self._opening = threading.Lock()
        self._keys: dict[str, bytes] = {}

    def start(self) -> None:
        self._run(lambda: self._log.start(self._take))

    def stop(self) -> None:
        """Stop following the log, and stop the stores of other topics."""
        with self._opening:
            others = list(self._others.values())
            self._others.clear()
        for other in others:
            other.stop()
        self._run(self._log.stop)

    def at(self, connection: Connection, topic: str) -> TopicOffsetStore:
        """Return the offsets in another topic, which is created if it is missing. Raises ConnectError."""
        if self._open_log is None:
            raise ConnectError(f"offsets cannot be stored in the separate topic {topic}")
        with self._opening:
            known = self._others.get((connection, topic))
            if known is None:
                known = TopicOffsetStore(self._open_log(connection, topic), self._loop, workers=self)
                try:
                    known.start()
                except BaseException:
                    known.stop()
                    raise
                self._others[connection, topic] = known
            return known

    def get(self, connector: str, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        """Return the offset of each partition, or None (``OffsetStore.get``). Includes the offsets that other workers
        have stored.
        """
        self._run(self._log.read_to_end)
        own = super().get(connector, partitions)
        if self._workers is None:
            return own
        workers = self._workers.get(connector, partitions)
        return [offset if offset is not None else other for offset, other in zip(own, workers, strict=True)]

    def all(self, connector: str) -> list[SourceOffset]:
        """Return all offsets (``OffsetStore.all``), including those that other workers have stored."""
        self._run(self._log.read_to_end)
        found = [*(() if self._workers is None else self._workers.all(connector)), *super().all(connector)]
        return list({key_of(connector, partition): (partition, offset) for partition, offset in found}.values())

    def store(self, connector: str, offsets: Iterable[SourceOffset]) -> None:
        """Store offsets (``OffsetStore.store``), and return when all in-sync replicas have them."""
        given = list(offsets)
        if self._workers is not None:  # otherwise deleted offsets would be found there again
            self._workers.store(connector, [one for one in given if one[1] is None])
        records = self.encoded(connector, given)
        if records:
            self._run(lambda: self._log.send(records))

    def encoded(self, connector: str, offsets: Iterable[SourceOffset]) -> list[tuple[bytes, bytes | None]]:
        """Return the offsets as records of the topic, in pairs of key and value; the value is None to delete an offset.
        The caller writes them, for example in a transaction.
        """
        with self._lock:
            keys = [(key_of(connector, partition), offset) for partition, offset in offsets]
            return [(self._keys.get(key) or key.encode(), _value(offset)) for key, offset in keys]

    def _take(self, record: Keyed) -> None:
        try:
            connector, partition = json.loads(record.key)
            offset = None if record.value is None else json.loads(record.value)
            if not (isinstance(connector, str) and isinstance(partition, dict) and isinstance(offset, dict | None)):
                raise TypeError("a partition and its offset must be JSON objects")
            name = key_of(connector, partition)
        except (ValueError, TypeError, RecursionError) as error:
            _log.warning("the offset record at offset %d cannot be parsed: %r", record.offset, error)
            return
        with self._lock:
            self._keys.setdefault(name, record.key)
            self._put(connector, partition, offset)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        doing = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return doing.result(_STORE_SECONDS)
        except TimeoutError:
            doing.cancel()
            raise RetriableError(f"the offsets topic did not respond within {_STORE_SECONDS:g} s") from None
        except KafkaError as error:
            kind = RetriableError if error.code.retriable else ConnectError
            raise kind(f"the offsets topic cannot be used: {error}") from error


def _value(offset: Mapping[str, Any] | None) -> bytes | None:
    return None if offset is None else packed(offset)
