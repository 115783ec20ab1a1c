"""The digest of a segment (``.digest``): checksums of its batches and their headers, computed when they are appended.

A batch's own checksum does not cover the batch's base offset, length, leader epoch and magic. The digest covers these
fields and the checksum itself, so both together cover every byte. Rules:

1. A digest is written when a segment is sealed, and when the active segment is closed. A segment that takes appends has
   no digest file.
2. A digest that is missing, malformed or for another size is ignored: then only the batches' checksums are verified. A
   digest that differs from batches with good checksums may itself be wrong (``parley.storage.damage.segment_check``).
3. A segment with damage has a digest of version 3, without checksums, because checksums of its present bytes would
   hide the damage. Only the size and the end offset are left, which reveal a missing end and missing segments. A digest
   of version 1 contains checksums of all bytes, but only these two fields are used.
4. Versions 4 and 5 are versions 2 and 3 with a checksum of the transaction index: with a damaged or deleted index,
   consumers would read aborted records.

Layout, big-endian: version int16, CRC-32C uint32 of everything after it, block size int32, size of the ``.log`` file
int64, end offset of the segment int64, then in versions 4 and 5 the CRC-32C uint32 of the ``.txnindex`` file (0 if it
does not exist), then in versions 2 and 4 two uint32 for each block: ``BlockSums.contents`` and ``.headers``.
"""

from __future__ import annotations

import logging
import struct
import sys
from array import array
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from parley.light_dataclasses import dataclass
from parley.named_tuples import new_tuple
from parley.protocol.records.batch_header import ATTRIBUTES_AT, BatchHeader, Buffer
from parley.protocol.records.crc32c import crc32c
from parley.storage.checkpoints import sync_file

BLOCK: Final = 64 << 10
"""The size of a block in bytes: small enough that a read of a few records at a random offset verifies little more than
it returns."""
BLOCK_MAX: Final = 1 << 24

_OF_ALL_BYTES = 1
_VERSIONS = {(True, False): 2, (False, False): 3, (True, True): 4, (False, True): 5}
"""The versions that are written, by (contains checksums of the blocks, contains a checksum of the transaction
index)."""
_WITH_CHECKSUMS, _WITH_TRANSACTIONS = (2, 4), (4, 5)
_SIZES = {_OF_ALL_BYTES: 4, 2: 8, 3: 0, 4: 8, 5: 0}  # the checksums of a block, by version
_HEAD = struct.Struct(">hIiqq")
_UINT32: Final = struct.Struct(">I")
_GATHERED_BYTES: Final = 1024
"""The number of header bytes that are gathered before they are added to the checksums. This takes two calls for 49
batches, instead of two for each batch."""
_CHECKED_FROM = 6

_log = logging.getLogger(__name__)


class CorruptDigest(ValueError):
    """Raised if the contents of a file are not a valid digest of a supported version."""


class BlockSums(NamedTuple):
    """The checksums of the batches that start in one block of the file; both are 0 if no batch starts there."""

    contents: int
    """The CRC-32C of the batches' own checksums."""
    headers: int
    """The CRC-32C of the first bytes of each batch, from the base offset up to and including the batch's checksum."""


NO_BATCHES: Final = BlockSums(0, 0)


def added(sums: BlockSums, batch: Buffer, header: BatchHeader) -> BlockSums:
    """Return the checksums of a block after adding a batch. ``batch`` is its first ``ATTRIBUTES_AT`` bytes."""
    return _with_gathered(sums, _UINT32.pack(header.crc), batch)


def _with_gathered(sums: BlockSums, contents: Buffer, headers: Buffer) -> BlockSums:
    """Return the checksums of a block after adding any number of batches: their own checksums, and their first
    bytes."""
    return new_tuple(BlockSums, (crc32c(contents, sums[0]), crc32c(headers, sums[1])))


@dataclass(frozen=True, slots=True)
class SegmentDigest:
    """The checksums of the batches in the first ``size`` bytes of a segment, which end at ``end_offset``, in blocks of
    ``block`` bytes.

    ``checksums`` contains two numbers for each block; it is empty in a digest without checksums. ``transactions`` is
    the checksum of the transaction index; None if it is not known.
    """

    block: int
    size: int
    end_offset: int
    checksums: array[int]
    transactions: int | None = None

    @classmethod
    def without_checksums(cls, size: int, end_offset: int, transactions: int | None = None) -> Self:
        """Return a digest without the checksums of the blocks."""
        return cls(BLOCK, size, end_offset, array("I"), transactions)

    @property
    def covers_headers(self) -> bool:
        """True if the digest contains the checksums of every block."""
        return len(self.checksums) == 2 * -(-self.size // self.block)

    def sums_of(self, block: int) -> BlockSums:
        """Return the checksums of the block with this number."""
        return BlockSums(self.checksums[2 * block], self.checksums[2 * block + 1])

    def encode(self) -> bytes:
        """Return the contents of the digest's file."""
        checksums = array("I", self.checksums)
        if sys.byteorder == "little":
            checksums.byteswap()
        transactions = b"" if self.transactions is None else _UINT32.pack(self.transactions)
        body = struct.pack(">iqq", self.block, self.size, self.end_offset) + transactions + checksums.tobytes()
        version = _VERSIONS[self.covers_headers, self.transactions is not None]
        return struct.pack(">hI", version, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Parse the contents of a digest's file. Raises ``CorruptDigest``."""
        if len(data) < _HEAD.size:
            raise CorruptDigest(f"{len(data)} bytes are too few for a digest")
        version, checksum, block, size, end_offset = _HEAD.unpack_from(data)
        if version not in _SIZES:
            raise CorruptDigest(f"unknown version {version}")
        if crc32c(memoryview(data)[_CHECKED_FROM:]) != checksum:
            raise CorruptDigest("the checksum does not match")
        begin = _HEAD.size + (_UINT32.size if version in _WITH_TRANSACTIONS else 0)
        if not 0 < block <= BLOCK_MAX or size < 0 or len(data) != begin + -(-size // block) * _SIZES[version]:
            raise CorruptDigest(f"{len(data)} bytes is the wrong length for the digest of {size} bytes")
        transactions = _UINT32.unpack_from(data, _HEAD.size)[0] if version in _WITH_TRANSACTIONS else None
        checksums = array("I")
        if version in _WITH_CHECKSUMS:
            checksums.frombytes(memoryview(data)[begin:])  # the constructor would copy them twice
        if sys.byteorder == "little":
            checksums.byteswap()
        return cls(block, size, end_offset, checksums, transactions)


class DigestBuilder:
    """Builds the digest of a segment while the segment is written. ``of`` continues an existing digest."""

    __slots__ = ("_checksums", "_current", "_gathered_crcs", "_gathered_heads", "size")

    def __init__(self) -> None:
        self._checksums = array("I")  # of the blocks before the current block, in which the last batch starts
        self._current = NO_BATCHES  # without the gathered batches
        self._gathered_crcs = self._gathered_heads = b""  # of batches in the current block
        self.size = 0

    @classmethod
    def of(cls, digest: SegmentDigest) -> DigestBuilder | None:
        """Return a builder that continues ``digest``; None if the digest has another block size or no checksums."""
        if digest.block != BLOCK or not digest.covers_headers:
            return None
        builder = cls()
        builder._checksums = array("I", digest.checksums)
        builder.size = digest.size
        if digest.checksums:
            headers, contents = builder._checksums.pop(), builder._checksums.pop()
            builder._current = BlockSums(contents, headers)
        return builder

    def add(self, data: Buffer, headers: Iterable[BatchHeader]) -> None:
        """Add whole batches that follow the previous ones."""
        at = 0
        for header in headers:
            block = (self.size + at) // BLOCK
            if len(self._checksums) < 2 * block:
                self._fill_to(block)
            self._gathered_crcs += _UINT32.pack(header.crc)
            self._gathered_heads += data[at : at + ATTRIBUTES_AT]
            at += header.size_bytes
            if len(self._gathered_heads) >= _GATHERED_BYTES:
                self._add_gathered()
        self.size += at

    def _add_gathered(self) -> None:
        if self._gathered_heads:
            self._current = _with_gathered(self._current, self._gathered_crcs, self._gathered_heads)
            self._gathered_crcs = self._gathered_heads = b""

    def _fill_to(self, block: int) -> None:
        """Make ``block`` the current block."""
        self._add_gathered()
        while len(self._checksums) < 2 * block:
            self._checksums.extend(self._current)
            self._current = NO_BATCHES

    def digest(self, end_offset: int, transactions: int | None = None) -> SegmentDigest:
        """Return the digest of the batches added so far, for a segment that ends at ``end_offset``."""
        self._add_gathered()
        checksums = array("I", self._checksums)
        if self.size:
            checksums.extend(self._current)
            checksums.extend([0] * (2 * -(-self.size // BLOCK) - len(checksums)))
        return SegmentDigest(BLOCK, self.size, end_offset, checksums, transactions)


def write_digest(path: Path, digest: SegmentDigest) -> None:
    """Write ``digest`` to the file at ``path`` without a sync; ``sync_digest`` makes it durable. Raises ``OSError``."""
    try:
        path.write_bytes(digest.encode())
    except IsADirectoryError:
        _ignore_directory(path)


def sync_digest(path: Path) -> None:
    """Sync the file to disk if it exists. Blocks. Raises ``OSError``."""
    with suppress(FileNotFoundError):
        sync_file(path)


def read_digest(path: Path) -> SegmentDigest | None:
    """Return the digest at ``path``, or None if it is missing or malformed. Raises ``OSError`` if the disk fails."""
    try:
        return SegmentDigest.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        _ignore_directory(path)
        return None
    except CorruptDigest as error:
        _log.warning("ignoring the digest %s: %s", path, error)
        return None


def remove_digest(path: Path) -> None:
    """Remove the file at ``path`` if it exists. Raises ``OSError``."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        _ignore_directory(path)


def _ignore_directory(path: Path) -> None:
    _log.warning("ignoring the digest %s: it is a directory, but must be a file. Remove it", path)
