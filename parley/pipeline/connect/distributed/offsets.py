"""The offsets of source connectors in a compacted topic (``offset.storage.topic``), as Kafka Connect keeps them.

A key is ``["connector",{partition of the source}]``, a value the offset in it; without a value the partition is
forgotten. Two keys are the same when their JSON is, whatever the order in it; a partition's records all have the key
that its first one had, byte for byte, or the topic would keep two.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from parley.pipeline.connect.distributed.log import Keyed, Log
from parley.pipeline.connect.errors import ConnectError, RetriableError
from parley.pipeline.connect.offsets import SourceOffset, StoredOffsets, key_of
from parley.protocol.errors import KafkaError

__all__ = ["TopicOffsetStore"]

_STORE_SECONDS: Final = 60.0
_log = logging.getLogger(__name__)

T = TypeVar("T")


class TopicOffsetStore:
    """An offset store (:class:`parley.pipeline.connect.offsets.OffsetStore`) over a log that lives in `loop`.

    Its calls block and may come from any thread but the loop's own.
    """

    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self._lock = threading.Lock()
        self._offsets = StoredOffsets()
        self._keys: dict[str, bytes] = {}

    def start(self) -> None:
        """As OffsetStore: read what is there."""
        self._run(lambda: self._log.start(self._take))

    def stop(self) -> None:
        """As OffsetStore."""
        self._run(self._log.stop)

    def get(self, connector: str, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        """As OffsetStore; also knows what other workers have stored."""
        self._run(self._log.read_to_end)
        with self._lock:
            return self._offsets.get(connector, partitions)

    def all(self, connector: str) -> list[SourceOffset]:
        """As OffsetStore; also knows what other workers have stored."""
        self._run(self._log.read_to_end)
        with self._lock:
            return self._offsets.all(connector)

    def store(self, connector: str, offsets: Iterable[SourceOffset]) -> None:
        """As OffsetStore: comes back when all in-sync replicas have them."""
        with self._lock:
            records = [(self._key(connector, partition), _value(offset)) for partition, offset in offsets]
        if records:
            self._run(lambda: self._log.send(records))

    def _key(self, connector: str, partition: Mapping[str, Any]) -> bytes:
        name = key_of(connector, partition)
        return self._keys.get(name) or name.encode()

    def _take(self, record: Keyed) -> None:
        try:
            connector, partition = json.loads(record.key)
            offset = None if record.value is None else json.loads(record.value)
            if not (isinstance(connector, str) and isinstance(partition, dict) and isinstance(offset, dict | None)):
                raise TypeError("a partition and its offset are objects")
            name = key_of(connector, partition)
        except (ValueError, TypeError, RecursionError) as error:
            _log.warning("the offset record at offset %d makes no sense: %r", record.offset, error)
            return
        with self._lock:
            self._keys.setdefault(name, record.key)
            self._offsets.put(connector, partition, offset)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        doing = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return doing.result(_STORE_SECONDS)
        except TimeoutError:
            doing.cancel()
            raise RetriableError(f"the topic of offsets did not answer within {_STORE_SECONDS:g} s") from None
        except KafkaError as error:
            kind = RetriableError if error.code.retriable else ConnectError
            raise kind(f"offsets cannot be stored: {error}") from error


def _value(offset: Mapping[str, Any] | None) -> bytes | None:
    return None if offset is None else json.dumps(offset, separators=(",", ":"), ensure_ascii=False).encode()
