"""A file with the leader epochs in which the batches of a log were appended. It shows whether an epoch was altered.

A batch's checksum does not cover its leader epoch. Rules:

1. The file is written before the first batch of each epoch, but not synced. It therefore covers all batches that this
   machine has appended since its last boot. After a reboot it proves nothing, and the next startup removes it.
2. It does not cover batches that were appended before it existed, or more than ``RUNS_MAX`` epoch changes ago.
3. Another program (Apache Kafka, an older version) may have appended batches since. Kafka writes each epoch to
   ``leader-epoch-checkpoint`` before the first batch of the epoch. A batch is therefore good if its epoch is the one in
   either file (``is_honest``).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from parley.protocol.records.batch_header import MAGIC_V2, BatchHeader
from parley.protocol.records.crc32c import crc32c
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.checkpoints import write_atomically
from parley.storage.leader_epoch_cache import EpochStart, epoch_at

APPENDED_EPOCHS: Final = "appended-leader-epochs"
RUNS_MAX: Final = 128
"""The number of epochs in the file. Only segments without a digest need their epochs: one or two segments."""

REASON: Final = "the leader epoch of a batch is not the one in which it was appended"

_SUM = struct.Struct(">I")
_RUN = struct.Struct(">iq")

_log = logging.getLogger(__name__)


class AppendedEpochs:
    """The leader epochs of the batches appended to one log since the machine booted."""

    def __init__(self, path: Path) -> None:
        """Start without epochs. The file will be written to ``path``."""
        self.path = path
        self._runs: tuple[EpochStart, ...] = ()

    @classmethod
    def open(cls, path: Path, *, same_boot: bool) -> Self:
        """Read the file at ``path``, or remove it if the machine has restarted since. Raises ``OSError``."""
        opened = cls(path)
        if same_boot:
            opened._runs = _read(path)
        else:
            path.unlink(missing_ok=True)
        return opened

    @property
    def runs(self) -> tuple[EpochStart, ...]:
        """The epochs of successive runs of batches, each with the offset of its first batch; the oldest first."""
        return self._runs

    def note(self, epoch: int, offset: int) -> None:
        """Record that a batch of ``epoch`` is about to be appended at ``offset``.

        Writes the file, without a sync, if the previous batch had another epoch. Raises ``OSError``.
        """
        runs = self._runs
        if epoch < 0 or (runs and runs[-1].epoch == epoch and runs[-1].start_offset <= offset):
            return
        runs = _before(runs, offset)  # epochs noted for appends that failed
        if not runs or runs[-1].epoch != epoch:
            runs = (*runs, EpochStart(epoch, offset))
        self._write(runs[-RUNS_MAX:])

    def truncate_from_end(self, offset: int) -> None:
        """Record that the log now ends at ``offset``. Call this after the truncation. Raises ``OSError``."""
        if self._runs and self._runs[-1].start_offset >= offset:
            self._write(_before(self._runs, offset))

    def is_honest(self, header: BatchHeader, known: Sequence[EpochStart]) -> bool | None:
        """Return True if a batch of the log has the leader epoch in which it was appended, False if the epoch was
        altered.

        ``known`` are the epochs in ``leader-epoch-checkpoint``. Returns None if the file does not cover the batch, or
        if the batch has no epoch.
        """
        epoch, appended = header.partition_leader_epoch, epoch_at(self._runs, header.base_offset)
        if appended is None or header.magic < MAGIC_V2 or epoch == NO_EPOCH:
            return None
        return epoch in (appended, epoch_at(known, header.base_offset))

    def _write(self, runs: tuple[EpochStart, ...]) -> None:
        data = b"".join(_RUN.pack(run.epoch, run.start_offset) for run in runs)
        write_atomically(self.path, _SUM.pack(crc32c(data)) + data, sync=False)
        self._runs = runs


def _before(runs: tuple[EpochStart, ...], offset: int) -> tuple[EpochStart, ...]:
    return tuple(run for run in runs if run.start_offset < offset)


def _read(path: Path) -> tuple[EpochStart, ...]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    runs = data[_SUM.size :]
    if len(data) < _SUM.size or len(runs) % _RUN.size or _SUM.unpack_from(data)[0] != crc32c(runs):
        _log.warning("%s is malformed: treating it as missing", path)
        return ()
    return tuple(EpochStart(epoch, start) for epoch, start in _RUN.iter_unpack(runs))
