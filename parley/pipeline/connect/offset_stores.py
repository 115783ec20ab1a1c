"""Stores of source connectors' offsets: an offset for each partition of a source, both JSON objects.

A worker has one store: a file if it is standalone (``FileOffsetStore``), or a compacted topic
(``parley.pipeline.connect.distributed.offset_topic``). Calls block. Several threads may call at the same time.
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parley.pipeline.connect.errors import ConnectError

SourceOffset = tuple[Mapping[str, Any], Mapping[str, Any] | None]
"""A partition of a source and its offset. None deletes the stored offset."""


def key_of(connector: str, partition: Mapping[str, Any]) -> str:
    """Return the key of a connector's partition: ``["connector",{...}]``, as in Kafka's offset topics."""
    return json.dumps([connector, partition], separators=(",", ":"), sort_keys=True)


class OffsetStore(ABC):
    """Offsets by connector and partition of the source. They are kept in memory, and stored by ``store``."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
        self._lock = threading.RLock()

    @abstractmethod
    def start(self) -> None:
        """Load the stored offsets. Raises ConnectError."""

    def stop(self) -> None:  # noqa: B027 - a file has nothing to give back
        """Release all resources."""

    def get(self, connector: str, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        """Return the stored offset of each partition, in their order; None if there is none."""
        with self._lock:
            known = self._offsets.get(connector, {})
            found = (known.get(key_of(connector, partition)) for partition in partitions)
            return [None if one is None else one[1] for one in found]

    def all(self, connector: str) -> list[SourceOffset]:
        """Return all partitions of the connector that have an offset, with their offsets."""
        with self._lock:
            return list(self._offsets.get(connector, {}).values())

    @abstractmethod
    def store(self, connector: str, offsets: Iterable[SourceOffset]) -> None:
        """Store offsets, and delete those that are None. They are durable when this returns.

        Raises ConnectError if they may not be durable.
        """

    def _put(self, connector: str, partition: Mapping[str, Any], offset: Mapping[str, Any] | None) -> None:
        with self._lock:
            known = self._offsets.setdefault(connector, {})
            if offset is None:
                known.pop(key_of(connector, partition), None)
            else:
                known[key_of(connector, partition)] = (partition, offset)


class ConnectorOffsets:
    """The stored offsets of one connector (``parley.pipeline.connect.connector.OffsetReader``)."""

    def __init__(self, connector: str, store: Callable[[], OffsetStore]) -> None:
        self._connector = connector
        self._store = store

    def offset(self, partition: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return self.offsets([partition])[0]

    def offsets(self, partitions: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        return self._store().get(self._connector, list(partitions))


class FileOffsetStore(OffsetStore):
    """Offsets in a JSON file (``offset.storage.file.filename``). Each ``store`` replaces the whole file."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path)

    def start(self) -> None:
        try:
            text = self._path.read_text() if self._path.exists() else "{}"
            for connector, offsets in json.loads(text or "{}").items():
                for partition, offset in offsets:
                    self._put(connector, partition, offset)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConnectError(f"The file of offsets {self._path} cannot be read: {error}") from error

    def store(self, connector: str, offsets: Iterable[SourceOffset]) -> None:
        with self._lock:
            for partition, offset in offsets:
                self._put(connector, partition, offset)
            self._write()

    def _write(self) -> None:
        text = json.dumps({name: list(offsets.values()) for name, offsets in self._offsets.items()}, indent=1)
        fresh = self._path.with_name(self._path.name + ".tmp")
        try:
            with open(fresh, "w") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._path)
        except OSError as error:
            raise ConnectError(f"Offsets cannot be stored in {self._path}: {error}") from error
