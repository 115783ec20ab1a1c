"""The highest epochs and ids that this broker has seen: the file ``coordination.epochs`` in each data directory.

A coordination store that was restored from a backup has lower ones, and would give them out a second time. So each
broker remembers what it has seen, and lifts the store's counters above it whenever it joins the cluster. The controller
asks for the newest metadata that the broker has seen, to recognise such a store (``parley.broker.metadata.terms``).

``EpochFile`` writes the file in the executor, so that a killed process has left the latest state. A power failure may
cost the changes of the last ``SYNC_PAUSE_S``. A change counts as written if at least one directory has taken it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.metadata.changes import Delta, PartitionChanged, PartitionsAdded, TopicCreated
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import NO_TERM, Term
from parley.broker.runtime.tasks import race
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.checkpoints import INT32_MAX, sync_directory, sync_file, write_atomically

_log = logging.getLogger(__name__)

EPOCHS_FILE = "coordination.epochs"
SYNC_PAUSE_S = 0.5
"""The pause between two syncs, so that many changes of the metadata do not keep the disk busy."""
RETRY_S = 1.0
"""The pause after no directory has taken a change."""
EPOCH_MAX = (1 << 31) - (1 << 20)
"""The highest controller epoch and leader epoch that are believed. The protocol's fields are int32; no cluster has a
million elections left to hold above this."""
ID_MAX = 1 << 62
"""The highest broker epoch, metadata version and producer id that are believed; the protocol's fields are int64."""


@dataclass(frozen=True, slots=True)
class KnownEpochs:
    """The highest epochs and ids that a broker has seen."""

    metadata: Term = NO_TERM
    """The newest metadata: epoch and id of its controller, and its version."""
    broker_epoch: int = NO_EPOCH
    """This broker's own epoch."""
    producer_ids_end: int = 0
    """One more than the highest producer id that this broker may have given to a client, or has in its logs."""
    leader_epoch: int = NO_EPOCH
    """The highest leader epoch of any partition. Nothing may have been written in it, so that no log knows it."""

    def raised_to(self, other: KnownEpochs) -> KnownEpochs:
        """Return the higher value of each field."""
        return KnownEpochs(
            max(self.metadata, other.metadata),
            max(self.broker_epoch, other.broker_epoch),
            max(self.producer_ids_end, other.producer_ids_end),
            max(self.leader_epoch, other.leader_epoch),
        )

    def to_bytes(self) -> bytes:
        """Encode the contents of the file."""
        fields = {
            "controller_epoch": self.metadata.epoch,
            "controller_id": self.metadata.controller_id,
            "metadata_version": self.metadata.version,
            "broker_epoch": self.broker_epoch,
            "producer_ids_end": self.producer_ids_end,
            "leader_epoch": self.leader_epoch,
        }
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> KnownEpochs:
        """Return the epochs that ``to_bytes`` encoded.

        Raises ValueError, KeyError or TypeError for anything else, and for numbers that no cluster reaches: the store's
        counters could not be lifted above them.
        """
        try:
            fields = json.loads(data)
        except RecursionError as error:
            raise ValueError("the JSON is nested too deeply") from error

        def number(name: str, highest: int) -> int:
            value = fields[name]
            if not isinstance(value, int) or not NO_EPOCH <= value <= highest:
                raise ValueError(f"{name} is {value!r}")
            return value

        term = Term(
            number("controller_epoch", EPOCH_MAX),
            number("controller_id", INT32_MAX),
            number("metadata_version", ID_MAX),
        )
        fields.setdefault("leader_epoch", NO_EPOCH)  # a file of an earlier version
        return cls(
            term, number("broker_epoch", ID_MAX), number("producer_ids_end", ID_MAX), number("leader_epoch", EPOCH_MAX)
        )


def read_known_epochs(directories: Sequence[Path]) -> KnownEpochs:
    """Return the highest epochs that these directories know. Blocks on the disk.

    A file that is missing or damaged counts as empty.
    """
    known = KnownEpochs()
    for directory in directories:
        path = directory / EPOCHS_FILE
        try:
            known = known.raised_to(KnownEpochs.from_bytes(path.read_bytes()))
        except OSError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("a file of known epochs is damaged", extra={"path": str(path), "reason": repr(error)})
    return known


class EpochFile:
    """Keeps ``KnownEpochs`` in the data directories."""

    def __init__(self, directories: Sequence[Path], known: KnownEpochs) -> None:
        """``known`` is what ``read_known_epochs`` has returned."""
        self.known = known
        """The highest epochs and ids so far. The files may lag behind it."""
        self._directories = directories
        self._written = known
        self._holders = directories
        """The directories that have taken what was written last."""
        self._failures = GrowingInterval(lambda: asyncio.get_running_loop().time())
        self._changed = asyncio.Event()
        self._unsynced = asyncio.Event()
        self._writing = asyncio.Lock()
        self._syncing = asyncio.Lock()

    def note(self, seen: KnownEpochs) -> None:
        """Raise ``known`` to what this broker has just seen. ``run`` writes it."""
        raised = self.known.raised_to(seen)
        if raised != self.known:
            self.known = raised
            self._changed.set()

    def note_image(self, delta: Delta, image: MetadataImage) -> None:
        """Note the metadata that this broker has just applied, and the leader epochs in its latest changes."""
        term = Term(image.controller_epoch, image.controller_id, image.version)
        self.note(KnownEpochs(term, leader_epoch=highest_leader_epoch(delta)))

    async def run(self) -> None:
        """Write every change at once, and sync the files from time to time, until cancelled.

        What no directory has taken is tried again after ``RETRY_S``.
        """
        await race(self._write_changes(), self._sync_changes())

    async def save(self) -> None:
        """Write ``known`` to every usable directory, and return when it is on the disk of at least one.

        Raises OSError if no directory has taken it. ``run`` then tries again.
        """
        await self._write()
        await self._sync()

    async def close(self) -> None:
        """Save for the last time. A failure is only logged."""
        try:
            await self.save()
        except OSError as error:
            self._log_failure(error)

    async def _write_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write()
            except OSError as error:
                await self._pause_after(error)

    async def _sync_changes(self) -> None:
        while True:
            await self._unsynced.wait()
            try:
                await self._sync()
            except OSError as error:
                await self._pause_after(error)
            else:
                await asyncio.sleep(SYNC_PAUSE_S)

    async def _pause_after(self, error: OSError) -> None:
        self._log_failure(error)
        await asyncio.sleep(RETRY_S)

    def _log_failure(self, error: OSError) -> None:
        if self._failures.is_due():
            _log.warning(
                "no data directory takes the epochs that this broker has seen: make room, or repair the disk",
                extra={"reason": str(error)},
            )

    async def _write(self) -> None:
        async with self._writing:
            known = self.known
            if known != self._written:
                try:
                    self._holders = await _on_disk(partial(_write, known=known), self._directories)
                except OSError:
                    self._changed.set()
                    raise
                self._written = known
                self._unsynced.set()

    async def _sync(self) -> None:
        async with self._syncing:
            if self._unsynced.is_set():
                self._unsynced.clear()
                try:
                    await _on_disk(_sync, self._holders)
                except OSError:
                    self._unsynced.set()
                    self._written = KnownEpochs()  # a failed sync may have dropped the bytes: they are written again
                    self._changed.set()
                    raise
                self._failures.restart()


def highest_leader_epoch(delta: Delta) -> int:
    """Return the highest leader epoch in the changes, NO_EPOCH if they have none."""
    epochs = [NO_EPOCH]
    for change in delta.changes:
        match change:
            case PartitionChanged(state=state):
                epochs.append(state.leader_epoch)
            case TopicCreated(topic):
                epochs += [state.leader_epoch for state in topic.partitions]
            case PartitionsAdded(partitions=partitions):
                epochs += [state.leader_epoch for state in partitions]
            case _:
                pass
    return max(epochs)


async def _on_disk(work: Callable[[Path], None], directories: Sequence[Path]) -> Sequence[Path]:
    """Run ``work`` on every directory, in the executor. Returns those where it succeeded.

    Raises OSError if that is none of them. The log directory reports what is wrong with a single one.
    """
    return await asyncio.get_running_loop().run_in_executor(None, _on_each, work, directories)


def _on_each(work: Callable[[Path], None], directories: Sequence[Path]) -> Sequence[Path]:
    succeeded, failure = [], None
    for directory in directories:
        try:
            work(directory)
            succeeded.append(directory)
        except OSError as error:
            failure = error
    if failure is not None and not succeeded:
        raise failure
    return succeeded


def _write(directory: Path, known: KnownEpochs) -> None:
    write_atomically(directory / EPOCHS_FILE, known.to_bytes(), sync=False)


def _sync(directory: Path) -> None:
    sync_file(directory / EPOCHS_FILE)
    sync_directory(directory)
