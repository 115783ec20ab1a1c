"""The highest epochs and ids that this broker has seen: the file ``coordination.epochs`` in each data directory.

A coordination store that was restored from a backup has lower ones, and would give them out a second time. So each
broker remembers what it has seen, and lifts the store's counters above it whenever it joins the cluster. The controller
asks for the newest metadata that the broker has seen, to recognise such a store (``parley.broker.metadata.terms``).

``EpochFile`` writes the file in the executor. A crash may lose the changes of the last ``WRITE_PAUSE_S``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import NO_TERM, Term
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.checkpoints import write_atomically

_log = logging.getLogger(__name__)

EPOCHS_FILE = "coordination.epochs"
WRITE_PAUSE_S = 0.1
"""The pause between two writes, so that many changes of the metadata do not keep the disk busy."""


@dataclass(frozen=True, slots=True)
class KnownEpochs:
    """The highest epochs and ids that a broker has seen."""

    metadata: Term = NO_TERM
    """The newest metadata: epoch and id of its controller, and its version."""
    broker_epoch: int = NO_EPOCH
    """This broker's own epoch."""
    producer_ids_end: int = 0
    """One more than the highest producer id that this broker may have given to a client, or has in its logs."""

    def raised_to(self, other: KnownEpochs) -> KnownEpochs:
        """Return the higher of both, field by field."""
        return KnownEpochs(
            max(self.metadata, other.metadata),
            max(self.broker_epoch, other.broker_epoch),
            max(self.producer_ids_end, other.producer_ids_end),
        )

    def to_bytes(self) -> bytes:
        """Encode the contents of the file."""
        fields = {
            "controller_epoch": self.metadata.epoch,
            "controller_id": self.metadata.controller_id,
            "metadata_version": self.metadata.version,
            "broker_epoch": self.broker_epoch,
            "producer_ids_end": self.producer_ids_end,
        }
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> KnownEpochs:
        """The inverse of ``to_bytes``. Raises ValueError, KeyError or TypeError for anything else."""
        fields = json.loads(data)
        term = Term(int(fields["controller_epoch"]), int(fields["controller_id"]), int(fields["metadata_version"]))
        return cls(term, int(fields["broker_epoch"]), int(fields["producer_ids_end"]))


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
        self._saved = known
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()

    def note(self, seen: KnownEpochs) -> None:
        """Raise ``known`` to what this broker has just seen. ``run`` writes it."""
        raised = self.known.raised_to(seen)
        if raised != self.known:
            self.known = raised
            self._changed.set()

    def note_image(self, image: MetadataImage) -> None:
        """Note the metadata that this broker has just applied."""
        self.note(KnownEpochs(Term(image.controller_epoch, image.controller_id, image.version)))

    async def run(self) -> None:
        """Write changes until cancelled: at once after a pause, and together if they come in quick succession."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.save()
            await asyncio.sleep(WRITE_PAUSE_S)

    async def save(self) -> None:
        """Write ``known`` to every usable directory, and return when it is on disk."""
        async with self._saving:
            known = self.known
            if known != self._saved:
                await asyncio.get_running_loop().run_in_executor(None, _write, self._directories, known)
                self._saved = known


def _write(directories: Sequence[Path], known: KnownEpochs) -> None:
    for directory in directories:
        try:
            write_atomically(directory / EPOCHS_FILE, known.to_bytes())
        except OSError:
            continue  # the log directory reports what is wrong with it
