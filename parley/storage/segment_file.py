"""A segment's ``.log`` file, and the iteration over its batches, which reads only their headers.

A v2 batch and a legacy message (v0 or v1, from older brokers) have offset, size and magic byte in the same place, so
one loop can read segments that mix them. Here, each legacy message counts as a batch.

The file is read with ``pread`` in chunks. Nothing in it is trusted: bytes that cannot be a batch raise
``CorruptRecord``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from parley.protocol.records.batch_header import HEADER_SIZE, BatchHeader, read_header
from parley.protocol.records.errors import CorruptRecord
from parley.storage.resource_exhaustion import with_room

LOOKUP_CHUNK: Final = 4096
"""The number of bytes read at a time to find a batch. It is usually enough, because there is an index entry every
``index.interval.bytes`` (4096)."""
SCAN_CHUNK: Final = 1 << 20


class SegmentFile:
    """An open ``.log`` file. It stays open while there is a reference to it, so a read in progress can continue to read
    a deleted segment. The constructor raises ``OSError``; with ``create``, it creates a missing file."""

    __slots__ = ("fd", "path")

    nowait_flag = os.RWF_NOWAIT

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.fd = -1
        self.path = path
        self.fd = with_room(os.open, path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def read(self, size: int, position: int, *, nowait: bool = False) -> bytes | bytearray:
        """Return up to ``size`` bytes; fewer only at the end of the file. Raises ``OSError``.

        May wait for the disk; with ``nowait``, raises ``BlockingIOError`` instead.
        """
        if not nowait:
            return os.pread(self.fd, size, position)
        data = bytearray(size)
        done = self.read_into(data, position, nowait=True)
        return data if done == size else data[:done]

    def read_into(self, buffer: bytearray | memoryview, position: int, *, nowait: bool = False) -> int:
        """Fill the buffer, or as much of it as the file provides. Returns the number of bytes read.

        With ``nowait``, raises ``BlockingIOError`` if it would have to wait for the disk. Raises ``OSError``.
        """
        flags = self.nowait_flag if nowait else 0
        try:
            done = os.preadv(self.fd, [buffer], position, flags)
        except OSError as error:
            if not flags or error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            SegmentFile.nowait_flag = 0  # the file system does not support ``nowait``, so every read may wait
            return self.read_into(buffer, position)
        while done < len(buffer):
            # A short read: the rest is not in memory (the next call raises), or the file ends.
            more = os.preadv(self.fd, [memoryview(buffer)[done:]], position + done, flags)
            if not more:
                break
            done += more
        return done


def batches(
    file: SegmentFile, position: int, end: int, *, chunk: int = LOOKUP_CHUNK, nowait: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and the header of each batch in the bytes [``position``, ``end``).

    ``chunk`` is the number of bytes read at a time. Raises ``CorruptRecord`` if the bytes are not whole batches,
    ``OSError``; with ``nowait``, ``BlockingIOError`` if it would have to wait for the disk.
    """
    data: bytes | bytearray = b""
    begin = position
    while position < end:
        at = position - begin
        if len(data) - at < HEADER_SIZE and begin + len(data) < end:
            data, begin, at = file.read(min(chunk, end - position), position, nowait=nowait), position, 0
        header = read_header(data, at)
        if header.base_offset < 0 or header.last_offset_delta < 0 or position + header.size_bytes > end:
            raise CorruptRecord(f"{file.path}: not a valid batch at byte {position}: {header}")
        yield position, header
        position += header.size_bytes


def read_batch(file: SegmentFile, position: int, header: BatchHeader) -> bytes | bytearray:
    """Return the whole batch at ``position``. Raises ``CorruptRecord`` if the file ends inside it, and ``OSError``."""
    data = file.read(header.size_bytes, position)
    if len(data) < header.size_bytes:
        raise CorruptRecord(f"{file.path} ends inside the batch at byte {position}")
    return data
