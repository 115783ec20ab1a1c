"""Every codec in both directions, the framings of other implementations, and hostile input."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from parley.protocol.records import compression
from parley.protocol.records.compression import Compression, compress, decompress, pieces
from parley.protocol.records.errors import DecompressedTooLarge, InvalidRecord
from tests.protocol.records.record_strategies import CODECS

REAL = [codec for codec in CODECS if codec is not Compression.NONE]
data = st.binary(max_size=400) | st.builds(
    lambda piece, times: piece * times, st.binary(max_size=40), st.integers(0, 5000)
)


@given(data, st.sampled_from(CODECS), st.sampled_from([0, 1, 2]))
def test_decompression_restores_the_data(plain: bytes, codec: Compression, magic: int) -> None:
    packed = compress(codec, plain, magic=magic)
    assert decompress(codec, packed, len(plain), magic=magic) == plain
    assert decompress(codec, memoryview(packed), len(plain), magic=magic) == plain


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Compression.GZIP, [-1, 1, 9]),
        (Compression.SNAPPY, [None]),
        (Compression.LZ4, [1, 9, 12, 17]),
        (Compression.ZSTD, [-131072, -5, 1, 3, 22]),
    ],
)
def test_every_level_there_is(codec: Compression, levels: list[int | None]) -> None:
    plain = b"".join(b"%d" % i for i in range(20_000))
    for level in levels:
        assert decompress(codec, compress(codec, plain, level), 1 << 20) == plain


@pytest.mark.parametrize("codec", REAL)
def test_large_data_comes_in_pieces(codec: Compression) -> None:
    plain = bytes(1000) + bytes(range(256)) * 20_000
    found = list(pieces(codec, compress(codec, plain), len(plain)))
    assert b"".join(found) == plain
    assert max(len(piece) for piece in found) <= 4 << 20


@given(data, st.integers(0, 300), st.sampled_from(CODECS))
def test_a_byte_more_than_allowed_is_refused(plain: bytes, less: int, codec: Compression) -> None:
    allowed = len(plain) - 1 - less
    if allowed < 0:
        return
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, compress(codec, plain), allowed)


# What other writers make.


def test_gzip_members_one_behind_the_other() -> None:
    packed = gzip.compress(b"first ") + gzip.compress(b"second")
    assert decompress(Compression.GZIP, packed, 100) == b"first second"


def test_snappy_without_framing() -> None:
    packed = bytes(cramjam.snappy.compress_raw(b"value " * 500))
    assert decompress(Compression.SNAPPY, packed, 3000) == b"value " * 500


def test_snappy_framing_of_another_version_and_block_size() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(100_000)))
    packed = b"\x82SNAPPY\x00" + struct.pack(">iii", 2, 1, len(block)) + block
    assert decompress(Compression.SNAPPY, packed, 100_000) == bytes(100_000)


def test_snappy_of_nothing() -> None:
    assert decompress(Compression.SNAPPY, b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1), 10) == b""


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_lz4_frames_of_every_kind(linked: bool, sized: bool, checked: bool, magic: int) -> None:
    plain = bytes(range(256)) * 4000
    packed = lz4.frame.compress(
        plain, block_linked=linked, store_size=sized, content_checksum=checked, block_checksum=checked, block_size=7
    )
    assert decompress(Compression.LZ4, packed, len(plain), magic=magic) == plain


def test_lz4_as_java_reads_it() -> None:
    """The frame has version 1, independent blocks of 64 KiB, and neither a size nor a dictionary."""
    packed = compress(Compression.LZ4, bytes(100))
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] & 0b1110_1001 == 0b0110_0000
    assert packed[5] == 4 << 4


def test_the_header_checksum_of_magic_0_covers_the_magic_number() -> None:
    """See KIP-57. The expected value is the known checksum of a frame with flags 0x60 and block size 0x40."""
    packed = compress(Compression.LZ4, b"value", magic=0)
    right = compress(Compression.LZ4, b"value", magic=1)
    assert packed[:6] == right[:6] == b"\x04\x22\x4d\x18\x60\x40"
    assert packed[7:] == right[7:]
    assert (packed[6], right[6]) == (0x1A, 0x82)
    with pytest.raises(InvalidRecord):
        decompress(Compression.LZ4, packed, 10, magic=1)


def test_zstd_frames_with_and_without_size() -> None:
    plain = bytes(range(256)) * 4000
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(plain)
    streaming = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    streamed = streaming.compress(plain) + streaming.flush()
    assert decompress(Compression.ZSTD, unsized, len(plain)) == plain
    assert decompress(Compression.ZSTD, streamed, len(plain)) == plain
    assert decompress(Compression.ZSTD, unsized + streamed, 2 * len(plain)) == plain * 2


def test_two_zstd_batches_at_once() -> None:
    first, second = bytes(400_000), b"x" * 300_000
    one = pieces(Compression.ZSTD, compress(Compression.ZSTD, first), 1 << 20)
    two = pieces(Compression.ZSTD, compress(Compression.ZSTD, second), 1 << 20)
    found = [next(one), next(two), next(one)]
    assert b"".join([found[0], found[2], *one]) == first
    assert b"".join([found[1], *two]) == second


# Hostile input.


@pytest.mark.parametrize("codec", REAL)
@given(noise=st.binary(max_size=120))
def test_noise_is_invalid_or_harmless(codec: Compression, noise: bytes) -> None:
    with suppress(InvalidRecord, DecompressedTooLarge):
        decompress(codec, noise, 1 << 16)


@pytest.mark.parametrize("codec", REAL)
@given(st.data())
def test_damage_is_invalid_or_harmless(codec: Compression, draw: st.DataObject) -> None:
    packed = bytearray(compress(codec, b"some value " * 30))
    for _ in range(draw.draw(st.integers(1, 3))):
        packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    del packed[draw.draw(st.integers(0, len(packed)) | st.just(len(packed))) :]
    for magic in (0, 1, 2):
        with suppress(InvalidRecord, DecompressedTooLarge):
            decompress(codec, packed, 1 << 16, magic=magic)


@pytest.mark.parametrize("codec", REAL)
def test_data_that_ends_too_early_is_invalid(codec: Compression) -> None:
    packed = compress(codec, bytes(range(256)) * 1000)
    for size in (0, 1, 5, 10, 17, len(packed) // 2, len(packed) - 4, len(packed) - 1):
        with pytest.raises(InvalidRecord):
            decompress(codec, packed[:size], 1 << 20)


def test_zstd_frames_of_every_kind_are_invalid_wherever_they_end_too_early() -> None:
    plain = random.Random(1).randbytes(300)
    streaming = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    streamed = streaming.compress(plain) + streaming.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + streaming.flush()
    run = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 300_000)
    sized = [zstandard.ZstdCompressor().compress(plain[:size]) for size in (0, 200, 300)]
    skipped = b"\x5a\x2a\x4d\x18\x03\x00\x00\x00abc"
    for frame in (streamed, run, *sized):
        expected = decompress(Compression.ZSTD, frame, 1 << 20)
        assert decompress(Compression.ZSTD, skipped + frame + skipped, 1 << 20) == expected
        for size in range(len(frame)):
            with pytest.raises(InvalidRecord):
                decompress(Compression.ZSTD, frame[:size], 1 << 20)
    for size in range(len(skipped)):
        with pytest.raises(InvalidRecord):
            decompress(Compression.ZSTD, skipped[:size], 1 << 20)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_bytes_behind_the_data_are_invalid(codec: Compression) -> None:
    with pytest.raises(InvalidRecord):
        decompress(codec, compress(codec, bytes(300_000)) + b"more", 1 << 20)


def zstd_bomb(total: int) -> bytes:
    """Return a zstd frame whose blocks of four bytes each expand to 128 KiB."""
    block = struct.pack("<I", (128 << 10) << 3 | 1 << 1)[:3] + b"\x00"
    return b"\x28\xb5\x2f\xfd\x00\x38" + block * (total >> 17)


BOMBS: dict[Compression, Callable[[], bytes]] = {
    Compression.GZIP: lambda: zlib.compress(bytes(1 << 27), 6, 31),
    Compression.SNAPPY: lambda: b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 5) + b"\xff\xff\xff\xff\x0f",
    Compression.LZ4: lambda: lz4.frame.compress(bytes(1 << 26)),
    Compression.ZSTD: lambda: zstd_bomb(1 << 30),
}


@pytest.mark.slow
@pytest.mark.parametrize("codec", REAL)
def test_a_bomb_takes_no_more_memory_than_allowed(codec: Compression) -> None:
    limit, bomb = 8 << 20, BOMBS[codec]()
    tracemalloc.start()
    try:
        with pytest.raises((DecompressedTooLarge, InvalidRecord)):
            for _ in pieces(codec, bomb, limit):
                pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit + (4 << 20)  # lz4's output for a single block


def test_a_raw_snappy_block_cannot_promise_more_than_it_holds() -> None:
    with pytest.raises(InvalidRecord, match="claims a larger size"):
        decompress(Compression.SNAPPY, b"\x80\x80\x80\x08" + bytes(10), 1 << 30)


def test_a_zstd_window_beyond_the_limit_is_invalid() -> None:
    with pytest.raises(InvalidRecord):
        decompress(Compression.ZSTD, b"\x28\xb5\x2f\xfd\x00\xff" + b"\x01\x00\x00", 1 << 20)


def test_codecs_by_name() -> None:
    assert [Compression.named(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")] == CODECS
    with pytest.raises(ValueError, match="uncompressed"):
        Compression.named("uncompressed")


@pytest.mark.parametrize(
    ("codec", "first", "empty"),
    [
        (Compression.GZIP, b"", gzip.compress(b"", mtime=0)),
        (Compression.SNAPPY, b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1), struct.pack(">i", 1) + b"\x00"),
    ],
)
def test_very_many_members_or_blocks_with_nothing_in_them_are_refused(
    codec: Compression, first: bytes, empty: bytes
) -> None:
    assert decompress(codec, first + empty * 1024, 100) == b""
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, first + empty * 1025, 100)
    assert decompress(codec, first + empty * 1100, 100 << 10) == b"", "as many as the allowed bytes may fill"


class CountedDecoder:
    """zlib's decoder, counting its input and output bytes."""

    copied = 0

    def __init__(self, window: int) -> None:
        self._decoder = zlib_decoder(window)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        CountedDecoder.copied += len(data)
        return self._decoder.decompress(data, max_length)

    def __getattr__(self, name: str) -> object:
        return getattr(self._decoder, name)


zlib_decoder = zlib.decompressobj


def test_a_gzip_member_costs_no_copy_of_all_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"x", mtime=0) * 20_000
    monkeypatch.setattr(zlib, "decompressobj", CountedDecoder)
    monkeypatch.setattr(CountedDecoder, "copied", 0)
    assert decompress(Compression.GZIP, packed, 32 << 20) == b"x" * 20_000
    assert CountedDecoder.copied <= 20_000 * 4096


def test_gzip_that_expands_or_does_not_comes_back_from_small_pieces_of_input() -> None:
    plain = bytes(3 << 20) + random.Random(1).randbytes(50_000) + bytes(200_000)
    packed = gzip.compress(plain) + gzip.compress(b"") + gzip.compress(plain)
    assert decompress(Compression.GZIP, packed, 2 * len(plain)) == plain * 2
    for cut in (1, 8, 5000, len(packed) // 2):
        with pytest.raises(InvalidRecord):
            decompress(Compression.GZIP, packed[:-cut], 2 * len(plain))


def test_a_decoder_with_a_large_buffer_is_not_kept() -> None:
    large = compress(Compression.ZSTD, bytes(9 << 20))
    for packed, kept in ((large, False), (compress(Compression.ZSTD, b"small"), True)):
        compression._idle_zstd_decoders.clear()
        decompress(Compression.ZSTD, packed, 1 << 30)
        assert bool(compression._idle_zstd_decoders) is kept
