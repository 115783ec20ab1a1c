"""Compresses and decompresses record batches, with a limit on the decompressed size.

=====  ======  ==========================================================  ==========================
value  name    format                                                      written as
=====  ======  ==========================================================  ==========================
1      gzip    RFC 1952, any number of members                             one member
2      snappy  xerial framing (blocks after a 16-byte header), or raw      xerial, blocks of 32 KiB
3      lz4     LZ4 frame; magic 0 has its header checksum wrong (KIP-57)   independent 64 KiB blocks
4      zstd    RFC 8878 frames (KIP-110)                                   one frame
=====  ======  ==========================================================  ==========================

No call produces more than ``max_bytes``, even if the input claims a smaller size. Invalid input raises InvalidRecord,
too much output DecompressedTooLarge. A codec's library is imported when the codec is first used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, Final

from parley.protocol.records.errors import DecompressedTooLarge, InvalidRecord
from parley.protocol.schema import Buffer

PIECE_BYTES: Final = 1 << 17
"""The approximate size of the pieces that ``pieces`` yields: small enough for the CPU cache."""
ZSTD_WINDOW_BYTES_MAX: Final = 1 << 27
"""The largest window that a zstd frame may request; the limit of zstd's own tools."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 1 << 15
_SNAPPY_RATIO_MAX: Final = 64
"""An upper limit of the compression ratio of a snappy block: an element of three bytes decompresses to 64 bytes."""
_PIECE_BYTES_LEAST: Final = 1 << 10
_SMALL_PIECES_MAX: Final = 1 << 10
"""The number of pieces of one call that may be small. A gzip member or a snappy block takes time even if it is empty,
so if there are more pieces, they must be at least ``_PIECE_BYTES_LEAST`` bytes on average."""
_GZIP_INPUT_BYTES: Final = 1 << 12
"""The number of bytes passed to the gzip decoder at a time. At the end of each member, the decoder copies the unused
ones."""
_LZ4_INPUT_BYTES: Final = 1 << 12
"""The number of bytes passed to the lz4 decoder at a time. The output is at most 255 times as large, plus a block that
the decoder has buffered."""
LZ4_LEVEL_FAST: Final = 9
"""Kafka's default lz4 level, which selects the fast compressor. All other levels select the high compressor
(KIP-390)."""
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"


class Compression(IntEnum):
    """The codec of a batch's records, with its value in the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> Compression:
        """Return the codec with this name in a configuration (``none``, ``gzip``, ...). Raises ValueError if there is
        none."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"{name!r} is not a compression type") from None


def compress(codec: Compression, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """Compress the contents of a batch (or, for ``magic`` 0 or 1, of a message).

    ``level`` is the codec's level (gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22; None: the default); snappy has none.
    """
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.LZ4 and magic == 0:
        return _with_wrong_checksum(_compress_lz4(data, level))
    return _COMPRESSORS[codec](data, level)


def decompress(codec: Compression, data: Buffer, max_bytes: int, *, magic: int = 2) -> bytes:
    """Decompress all of ``data``. Raises InvalidRecord if the bytes are invalid for the codec, and DecompressedTooLarge
    if the result exceeds ``max_bytes``."""
    if codec is Compression.NONE:
        return _copied(data, max_bytes)  # fast, because a log may contain millions of batches with one record
    return b"".join(pieces(codec, data, max_bytes, magic=magic))


def pieces(codec: Compression, data: Buffer, max_bytes: int, *, magic: int = 2) -> Iterator[bytes]:
    """Decompress ``data`` piece by piece. Raises the errors of ``decompress`` during the iteration.

    Pieces may be empty. A very large number of nearly empty pieces is also rejected as too much output.
    """
    if codec is Compression.LZ4 and magic == 0:
        data = _with_right_checksum(data)
    total = 0
    pieces_max = _SMALL_PIECES_MAX + max_bytes // _PIECE_BYTES_LEAST
    for number, piece in enumerate(_DECOMPRESSORS[codec](data, max_bytes), 1):
        total += len(piece)
        if total > max_bytes or number > pieces_max:
            raise DecompressedTooLarge(max_bytes)
        yield piece


def _uncompressed(data: Buffer, max_bytes: int) -> Iterator[bytes]:
    yield _copied(data, max_bytes)


def _copied(data: Buffer, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise DecompressedTooLarge(max_bytes)
    return bytes(data)


# --- gzip ---


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    return compressor.compress(data) + compressor.flush()


def _gzip_pieces(data: Buffer, max_bytes: int) -> Iterator[bytes]:
    view, pos = memoryview(data), 0
    try:
        while True:
            member = zlib.decompressobj(31)
            while not member.eof:
                given = member.unconsumed_tail
                if not given:
                    given = bytes(view[pos : pos + _GZIP_INPUT_BYTES])
                    pos += len(given)
                piece = member.decompress(given, PIECE_BYTES)
                if not piece and not given and not member.eof:
                    raise InvalidRecord("gzip data is truncated")
                if piece or member.eof:
                    yield piece
            pos -= len(member.unused_data)
            if pos == len(view):
                return
    except zlib.error as error:
        raise InvalidRecord(f"not gzip data: {error}") from None


# --- snappy ---


def _compress_snappy(data: Buffer, level: int | None) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += len(block).to_bytes(4, "big")
        out += block
    return bytes(out)


def _snappy_pieces(data: Buffer, max_bytes: int) -> Iterator[bytes]:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield _snappy_block(view, max_bytes)
        return
    pos = len(_XERIAL_HEADER)
    if pos > len(view):
        raise InvalidRecord("snappy data ends inside its header")
    while pos < len(view):
        size = int.from_bytes(view[pos : pos + 4], "big")
        pos += 4
        if size > len(view) - pos:
            raise InvalidRecord("snappy data ends inside a block")
        yield _snappy_block(view[pos : pos + size], max_bytes)
        pos += size


def _snappy_block(block: memoryview, max_bytes: int) -> bytes:
    import cramjam

    if not block:
        raise InvalidRecord("snappy data contains an empty block")
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > max_bytes:
            raise DecompressedTooLarge(max_bytes)
        if size > len(block) * _SNAPPY_RATIO_MAX:
            raise InvalidRecord("snappy data claims a larger size than it can decompress to")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise InvalidRecord(f"not snappy data: {error}") from None


# --- lz4 ---


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    import lz4.frame

    # Java's reader requires independent blocks, and all other readers accept them.
    return bytes(
        lz4.frame.compress(
            data,
            compression_level=0 if level in (None, LZ4_LEVEL_FAST) else level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
    )


def _lz4_pieces(data: Buffer, max_bytes: int) -> Iterator[bytes]:
    import lz4.frame

    view = memoryview(data)
    decoder = lz4.frame.LZ4FrameDecompressor()
    try:
        for start in range(0, len(view), _LZ4_INPUT_BYTES):
            if decoder.eof:
                raise InvalidRecord("unexpected bytes after the end of an lz4 frame")
            if piece := decoder.decompress(view[start : start + _LZ4_INPUT_BYTES]):
                yield piece
    except RuntimeError as error:
        raise InvalidRecord(f"not lz4 data: {error}") from None
    if not decoder.eof or decoder.unused_data:
        raise InvalidRecord("lz4 data is truncated, or followed by unexpected bytes")


def _with_wrong_checksum(frame: bytes) -> bytes:
    """Return the frame as writers of magic 0 produce it, with a header checksum that includes the magic number
    (KIP-57)."""
    end = _lz4_descriptor_end(frame)
    return frame[:end] + _lz4_checksum(frame[:end]) + frame[end + 1 :]


def _with_right_checksum(frame: Buffer) -> bytes:
    """Return a frame from a writer of magic 0 with the header checksum that the decoder expects."""
    end = _lz4_descriptor_end(frame)
    whole = bytes(frame)
    return whole[:end] + _lz4_checksum(whole[4:end]) + whole[end + 1 :]


def _lz4_descriptor_end(frame: Buffer) -> int:
    """Return the position of the frame's header checksum."""
    if len(frame) < 7 or bytes(frame[:4]) != _LZ4_MAGIC:
        raise InvalidRecord("not lz4 data: no frame")
    flags = frame[4]
    end = 6 + (8 if flags & 0x08 else 0)
    if flags & 0x01 or len(frame) <= end:
        raise InvalidRecord("not lz4 data: invalid frame header")
    return end


def _lz4_checksum(descriptor: bytes) -> bytes:
    """Return the second byte of the descriptor's xxHash32. This is the variant for fewer than 16 bytes, which suffices
    for a descriptor."""
    mask = 0xFFFFFFFF
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    value = prime5 + len(descriptor)
    words = len(descriptor) // 4 * 4
    for (word,) in struct.iter_unpack("<I", descriptor[:words]):
        value = (value + word * prime3) & mask
        value = (value << 17 | value >> 15) & mask
        value = value * prime4 & mask
    for byte in descriptor[words:]:
        value = (value + byte * prime5) & mask
        value = (value << 11 | value >> 21) & mask
        value = value * prime1 & mask
    value = (value ^ value >> 15) * prime2 & mask
    value = (value ^ value >> 13) * prime3 & mask
    value ^= value >> 16
    return bytes((value >> 8 & 0xFF,))


# --- zstd ---


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


_idle_zstd_decoders: list[Any] = []
"""Idle decoders, which are reused because creating one costs more than decompressing a small batch. Each is used by one
iteration at a time, in any thread."""
_ZSTD_KEPT_BYTES: Final = 8 << 20
"""A decoder that has decompressed more than this is not kept, because it keeps a buffer as large as the frame's window
or contents: up to ``ZSTD_WINDOW_BYTES_MAX``."""

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED_MAGIC: Final = b"\x2a\x4d\x18"
"""The last three bytes of the magic numbers of skippable frames; the first is 0x50 to 0x5f."""
_ZSTD_SIZE_BYTES: Final = (0, 2, 4, 8)
"""The size in bytes of a frame's content size field, by its flag; 1 instead of 0 in a single-segment frame."""
_ZSTD_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_ZSTD_RUN: Final = 1
"""The type of a block that repeats one byte. Only this byte is stored, regardless of the size of the block."""


def _zstd_pieces(data: Buffer, max_bytes: int) -> Iterator[bytes]:
    import zstandard

    _check_zstd_frames(memoryview(data))
    try:
        decoder = _idle_zstd_decoders.pop()
    except IndexError:
        decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    size = 0
    try:
        with decoder.stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(PIECE_BYTES):
                size += len(piece)
                yield piece
    except zstandard.ZstdError as error:
        raise InvalidRecord(f"not zstd data: {error}") from None
    finally:
        if size <= _ZSTD_KEPT_BYTES:
            _idle_zstd_decoders.append(decoder)


def _check_zstd_frames(data: memoryview) -> None:
    """Raise InvalidRecord unless the data ends at the end of a frame, because the decoder accepts truncated frames."""
    pos = 0
    while True:
        pos = _zstd_frame_end(data, pos)
        if pos == len(data):
            return
        if pos > len(data):
            raise InvalidRecord("zstd data is truncated")


def _zstd_frame_end(data: memoryview, start: int) -> int:
    """Return the position after the frame at ``start`` (RFC 8878). It is greater than the length of the data if the
    frame is truncated."""
    magic, pos = bytes(data[start : start + 4]), start + 5
    if len(magic) == 4 and magic[0] >> 4 == 5 and magic[1:] == _ZSTD_SKIPPED_MAGIC:
        return start + 8 + int.from_bytes(data[start + 4 : start + 8], "little")
    if pos > len(data):
        return pos
    if magic != _ZSTD_MAGIC:
        raise InvalidRecord("not zstd data: no frame")
    descriptor = data[start + 4]
    is_single = descriptor >> 5 & 1
    pos += 1 - is_single  # the window size
    pos += _ZSTD_DICTIONARY_BYTES[descriptor & 3] + (_ZSTD_SIZE_BYTES[descriptor >> 6] or is_single)
    is_last = 0
    while not is_last:
        if pos + 3 > len(data):
            return pos + 3
        block = data[pos] | data[pos + 1] << 8 | data[pos + 2] << 16
        is_last = block & 1
        pos += 3 + (1 if block >> 1 & 3 == _ZSTD_RUN else block >> 3)
    return pos + (descriptor & 4)  # the checksum, if this flag is set


_COMPRESSORS: Final[dict[Compression, Callable[[Buffer, int | None], bytes]]] = {
    Compression.GZIP: _compress_gzip,
    Compression.SNAPPY: _compress_snappy,
    Compression.LZ4: _compress_lz4,
    Compression.ZSTD: _compress_zstd,
}
_DECOMPRESSORS: Final[dict[Compression, Callable[[Buffer, int], Iterator[bytes]]]] = {
    Compression.NONE: _uncompressed,
    Compression.GZIP: _gzip_pieces,
    Compression.SNAPPY: _snappy_pieces,
    Compression.LZ4: _lz4_pieces,
    Compression.ZSTD: _zstd_pieces,
}
