"""The highest epochs and ids that this broker has seen: the file ``coordination.epochs`` in each data directory.

A coordination store that was restored from a backup contains lower epochs and ids, and would issue higher ones a second
time. So each broker remembers the highest epochs and ids that it has seen, and raises the store's counters above them
whenever it joins the cluster. To detect a restored store, the controller compares the store with the newest metadata
that each broker has seen (``parley.broker.metadata.terms``).

``EpochFile`` writes every change immediately, so that the latest state survives if the process is killed. It syncs the
files at intervals, so a power failure may lose the changes of the last ``SYNC_PAUSE_S``. A change counts as written if
at least one directory has stored it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.metadata.changes import Delta, PartitionChanged, PartitionsAdded, TopicCreated
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import NO_TERM, Term
from parley.broker.runtime.tasks import race
from parley.light_dataclasses import dataclass
from parley.protocol.records.crc32c import crc32c
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.checkpoints import INT32_MAX, sync_directory, sync_file, write_atomically

_log = logging.getLogger(__name__)

EPOCHS_FILE = "coordination.epochs"
SYNC_PAUSE_S = 0.5
"""The pause between two syncs, so that frequent metadata changes do not keep the disk busy."""
RETRY_S = 1.0
"""The pause before a change is written again if no directory could store it."""
EPOCH_MAX = (1 << 31) - (1 << 20)
"""The highest controller epoch and leader epoch that are accepted as plausible. The protocol's fields are int32, and
the range above this value still allows for a million elections."""
ID_MAX = 1 << 62
"""The highest broker epoch, metadata version and producer id that are accepted as plausible. The protocol's fields are
int64."""
_CHECKSUM = "crc32c"


@dataclass(frozen=True, slots=True)
class RememberedEpochs:
    """The highest epochs and ids that a broker has seen."""

    metadata: Term = NO_TERM
    """The newest metadata: the epoch and id of its controller, and its version."""
    broker_epoch: int = NO_EPOCH
    """This broker's own epoch."""
    producer_ids_end: int = 0
    """One more than the highest producer id that this broker may have given to a client, or that occurs in its logs."""
    leader_epoch: int = NO_EPOCH
    """The highest leader epoch of any partition. The logs lack it if no record was written in that epoch."""

    def raised_to(self, other: RememberedEpochs) -> RememberedEpochs:
        """Return a copy in which each field has the higher of the values in this object and in ``other``."""
        return RememberedEpochs(
            max(self.metadata, other.metadata),
            max(self.broker_epoch, other.broker_epoch),
            max(self.producer_ids_end, other.producer_ids_end),
            max(self.leader_epoch, other.leader_epoch),
        )

    def to_bytes(self) -> bytes:
        """Return the epochs as the contents of the file ``EPOCHS_FILE``, with a checksum."""
        fields = {
            "controller_epoch": self.metadata.epoch,
            "controller_id": self.metadata.controller_id,
            "metadata_version": self.metadata.version,
            "broker_epoch": self.broker_epoch,
            "producer_ids_end": self.producer_ids_end,
            "leader_epoch": self.leader_epoch,
        }
        return json.dumps({**fields, _CHECKSUM: _checksum(fields)}).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> RememberedEpochs:
        """Return the epochs that ``to_bytes`` encoded.

        Raises ValueError, KeyError or TypeError for any other data, and for implausibly high numbers, because the
        store's counters could not be raised above them.
        """
        try:
            fields = json.loads(data)
        except RecursionError as error:
            raise ValueError("the JSON is nested too deeply") from error
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")
        if fields.pop(_CHECKSUM, None) not in (None, _checksum(fields)):  # None in files of earlier versions
            raise ValueError("its checksum is wrong")

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
        fields.setdefault("leader_epoch", NO_EPOCH)  # absent in files of earlier versions
        return cls(
            term, number("broker_epoch", ID_MAX), number("producer_ids_end", ID_MAX), number("leader_epoch", EPOCH_MAX)
        )


def _checksum(fields: Mapping[str, object]) -> int:
    return crc32c(json.dumps(fields).encode())


def read_remembered_epochs(directories: Sequence[Path]) -> RememberedEpochs:
    """Return the highest epochs in the files of these directories. Blocks on the disk.

    A missing or damaged file counts as empty.
    """
    known = RememberedEpochs()
    for directory in directories:
        path = directory / EPOCHS_FILE
        try:
            known = known.raised_to(RememberedEpochs.from_bytes(path.read_bytes()))
        except OSError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("a file of known epochs is damaged", extra={"path": str(path), "reason": repr(error)})
    return known


class EpochFile:
    """Keeps ``RememberedEpochs`` in the data directories."""

    def __init__(self, directories: Sequence[Path], known: RememberedEpochs) -> None:
        """``known`` is the result of ``read_remembered_epochs``."""
        self.known = known
        """The highest epochs and ids so far. The files may lag behind this value."""
        self._directories = directories
        self._written = known
        self._holders = directories
        """The directories that contain the latest written value."""
        self._failures = GrowingInterval(lambda: asyncio.get_running_loop().time())
        self._changed = asyncio.Event()
        self._unsynced = asyncio.Event()
        self._writing = asyncio.Lock()
        self._syncing = asyncio.Lock()

    def note(self, seen: RememberedEpochs) -> None:
        """Raise ``known`` to the epochs and ids that this broker has just seen. ``run`` writes them to the disk."""
        raised = self.known.raised_to(seen)
        if raised != self.known:
            self.known = raised
            self._changed.set()

    def note_image(self, delta: Delta, image: MetadataImage) -> None:
        """Record the metadata that this broker has just applied, and the leader epochs in its latest changes."""
        self.note(RememberedEpochs(image.term, leader_epoch=highest_leader_epoch(delta)))

    async def run(self) -> None:
        """Write every change immediately, and sync the files periodically, until cancelled.

        A change that no directory could store is written again after ``RETRY_S``.
        """
        await race(self._write_changes(), self._sync_changes())

    async def save(self) -> None:
        """Write ``known`` to every usable directory. Returns when it is on the disk of at least one directory.

        Raises OSError if no directory could store it. ``run`` then tries again.
        """
        await self._write()
        await self._sync()

    async def close(self) -> None:
        """Save one last time. A failure is only logged."""
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
        if self._failures.claim_line():
            _log.warning(
                "no data directory can store the epochs that this broker has seen: free some space, or repair the disk",
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
                    self._written = RememberedEpochs()  # a failed sync may have dropped the bytes: write them again
                    self._changed.set()
                    raise
                self._failures.restart()


def highest_leader_epoch(delta: Delta) -> int:
    """Return the highest leader epoch in the changes; ``NO_EPOCH`` if they contain none."""
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
    """Run ``work`` on every directory, in the executor. Returns the directories for which it succeeded.

    Raises OSError if it failed for all of them. A failure of a single directory is reported when its logs fail.
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


def _write(directory: Path, known: RememberedEpochs) -> None:
    write_atomically(directory / EPOCHS_FILE, known.to_bytes(), sync=False)


def _sync(directory: Path) -> None:
    sync_file(directory / EPOCHS_FILE)
    sync_directory(directory)
