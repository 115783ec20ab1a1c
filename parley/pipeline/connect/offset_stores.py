"""Stores of source connectors' offsets: an offset for each partition of a source, both JSON objects.

A worker has one store: a file if it is standalone (``FileOffsetStore``), or a compacted topic. Calls block. Several
threads may call at the same time.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from parley.pipeline.client.cluster import Connection
from parley.pipeline.connect.errors import ConnectError

__all__ = ["FileOffsetStore", "OffsetStore", "SourceOffset", "StoredOffsets", "TopicOffsets", "key_of"]

SourceOffset = tuple[Mapping[str, Any], Mapping[str, Any] | None]
"""A partition of a source and its offset. None deletes the partition."""


class OffsetStore(Protocol):
    """Offsets by connector and partition of the source."""

    def start(self) -> None:
        """Load the stored offsets. Raises ConnectError."""
        ...

    def stop(self) -> None: ...

    def get(self, connector: str, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        """Return the offsets of these partitions, in their order, or None. Includes offsets that were just stored."""
        ...

    def all(self, connector: str) -> list[SourceOffset]:
        """Return all partitions of the connector that have an offset."""
        ...

    def store(self, connector: str, offsets: Iterable[SourceOffset]) -> None:
        """Store offsets. They are durable when this returns. Raises ConnectError if they may not be durable."""
        ...


class TopicOffsets(OffsetStore, Protocol):
    """An offset store in a topic."""

    def at(self, connection: Connection, topic: str) -> TopicOffsets:
        """Return the offsets in another topic, which is created if it is missing. Offsets that it lacks are read from
        this one.

        Raises ConnectError.
        """
        ...

    def encoded(self, connector: str, offsets: Iterable[SourceOffset]) -> list[tuple[bytes, bytes | None]]:
        """Return the offsets as records of the topic: keys and values."""
        ...


def key_of(connector: str, partition: Mapping[str, Any]) -> str:
    """Return the key of a connector's partition: ``["connector",{...}]``, as in Kafka's offset topics."""
    return json.dumps([connector, partition], separators=(",", ":"), sort_keys=True)


class StoredOffsets:
    """The offsets in memory, which every store uses. Only for one thread at a time."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}

    def get(self, connector: str, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        known = self._offsets.get(connector, {})
        found = (known.get(key_of(connector, partition)) for partition in partitions)
        return [None if one is None else one[1] for one in found]

    def all(self, connector: str) -> list[SourceOffset]:
        return list(self._offsets.get(connector, {}).values())

    def connectors(self) -> list[str]:
        return list(self._offsets)

    def put(self, connector: str, partition: Mapping[str, Any], offset: Mapping[str, Any] | None) -> None:
        known = self._offsets.setdefault(connector, {})
        if offset is None:
            known.pop(key_of(connector, partition), None)
        else:
            known[key_of(connector, partition)] = (partition, offset)


class FileOffsetStore:
    """Offsets in a JSON file (``offset.storage.file.filename``). Each ``store`` replaces the whole file."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._offsets = StoredOffsets()
        self._lock = threading.Lock()

    def start(self) -> None:
        try:
            text = self._path.read_text() if self._path.exists() else "{}"
            for connector, offsets in json.loads(text or "{}").items():
                for partition, offset in offsets:
                    self._offsets.put(connector, partition, offset)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConnectError(f"The file of offsets {self._path} cannot be read: {error}") from error

    def stop(self) -> None:
        return

    def get(self, connector: str, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        with self._lock:
            return self._offsets.get(connector, partitions)

    def all(self, connector: str) -> list[SourceOffset]:
        with self._lock:
            return self._offsets.all(connector)

    def store(self, connector: str, offsets: Iterable[SourceOffset]) -> None:
        with self._lock:
            for partition, offset in offsets:
                self._offsets.put(connector, partition, offset)
            self._write()

    def _write(self) -> None:
        text = json.dumps({name: self._offsets.all(name) for name in self._offsets.connectors()}, indent=1)
        fresh = self._path.with_name(self._path.name + ".tmp")
        try:
            with open(fresh, "w") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._path)
        except OSError as error:
            raise ConnectError(f"Offsets cannot be stored in {self._path}: {error}") from error
