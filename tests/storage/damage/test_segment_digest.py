"""The digest of a segment: building, writing, reading, continuing, and comparing it with the segment."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import ATTRIBUTES_AT, Buffer, headers
from parley.storage.damage.segment_digest import (
    BLOCK,
    CorruptDigest,
    DigestBuilder,
    SegmentDigest,
    read_digest,
    write_digest,
)
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from tests.storage.logs import NOW, append, apply_retention, batch_of, fill, open_log, values_of
from tests.support.proportion import examples

SIZES = st.lists(st.sampled_from([1, 100, 5000, BLOCK - 80, BLOCK, BLOCK + 1, 3 * BLOCK + 7]), max_size=8)
LARGE = LogConfig(segment_bytes=5 * BLOCK, segment_index_bytes=4096, index_interval_bytes=4096)


def sums_of(data: bytes) -> list[int]:
    """Return the checksums that a digest of these batches must contain."""
    blocks = dict.fromkeys(range(-(-len(data) // BLOCK)), (b"", b""))
    for at, header in headers(data):
        contents, prefixes = blocks[at // BLOCK]
        blocks[at // BLOCK] = contents + struct.pack(">I", header.crc), prefixes + data[at : at + ATTRIBUTES_AT]
    return [crc32c(part) for parts in blocks.values() for part in parts]


@settings(max_examples=examples(50), deadline=None)
@given(sizes=SIZES, closed_after=st.integers(0, 8))
def test_every_block_has_its_checksums(sizes: list[int], closed_after: int) -> None:
    data, builder = b"", DigestBuilder()
    for number, size in enumerate(sizes):
        if number == closed_after:
            continued = DigestBuilder.of(SegmentDigest.decode(builder.digest(0).encode()))
            assert continued is not None
            builder = continued
        some = batch_of(bytes(size), base_offset=number) + batch_of(b"small", base_offset=number)
        builder.add(some, [header for _, header in headers(some)])
        data += some
    digest = SegmentDigest.decode(builder.digest(77).encode())
    assert (digest.size, digest.end_offset) == (len(data), 77)
    assert list(digest.checksums) == sums_of(data)
    assert digest.covers_headers


@pytest.mark.parametrize("taken_after", [1, 48, 49, 50, 999])
def test_a_digest_of_many_small_batches_can_be_taken_at_any_time(taken_after: int) -> None:
    data, builder = b"", DigestBuilder()
    for number in range(1200):
        batch = batch_of(b"small", base_offset=number)
        builder.add(batch, [header for _, header in headers(batch)])
        data += batch
        if number == taken_after:
            assert list(builder.digest(0).checksums) == sums_of(data)
    assert list(builder.digest(0).checksums) == sums_of(data)


@pytest.mark.parametrize("transactions", [None, 0, 0xFFFFFFFF])
@pytest.mark.parametrize("of_extent", [True, False])
def test_a_digest_may_have_the_checksum_of_the_transaction_index(transactions: int | None, of_extent: bool) -> None:
    digest = with_batches(2).digest(9, transactions)
    if of_extent:
        digest = SegmentDigest.without_checksums(digest.size, 9, transactions)
    assert SegmentDigest.decode(digest.encode()) == digest


def with_batches(count: int) -> DigestBuilder:
    builder = DigestBuilder()
    for _ in range(count):
        batch: Buffer = batch_of(bytes(BLOCK))
        builder.add(batch, [header for _, header in headers(batch)])
    return builder


@settings(max_examples=examples(200), deadline=None)
@given(data=st.binary(max_size=60), seed=st.integers(0, 2**32))
def test_any_bytes_are_a_digest_or_refused(data: bytes, seed: int) -> None:
    random = Random(seed)
    encoded = bytearray(with_batches(3).digest(9).encode())
    encoded[random.randrange(len(encoded))] ^= 1 << random.randrange(8)
    for each in (data, bytes(encoded), bytes(encoded[: random.randrange(len(encoded))])):
        with pytest.raises(CorruptDigest):
            SegmentDigest.decode(each)


def test_a_digest_that_cannot_be_used_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "0.digest"
    assert read_digest(path) is None
    assert not caplog.records
    path.write_bytes(b"?" * 30)
    assert read_digest(path) is None
    assert "ignoring the digest" in caplog.text
    other = SegmentDigest(BLOCK * 2, 0, 0, DigestBuilder().digest(0).checksums)
    write_digest(path, other)
    assert read_digest(path) == other
    assert DigestBuilder.of(other) is None


def of_version_1(data: bytes, end_offset: int) -> bytes:
    """Return a digest's file as earlier versions of Parley wrote it: the checksum of each block of bytes."""
    checksums = [crc32c(data[n : n + BLOCK]) for n in range(0, len(data), BLOCK)]
    body = struct.pack(f">iqq{len(checksums)}I", BLOCK, len(data), end_offset, *checksums)
    return struct.pack(">hI", 1, crc32c(body)) + body


def test_a_digest_of_version_1_tells_the_size_and_is_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 60)
    log.close()
    expected = {path: path.read_bytes() for path in tmp_path.glob("*.digest")}
    for segment in log.segments:
        data = segment.path_of(".log").read_bytes()
        segment.path_of(".digest").write_bytes(of_version_1(data, min(segment.end_offset, 60)))
    log.segments[1].path_of(".log").unlink()
    log = open_log(tmp_path, clean=True, recovery_point=60)
    missing = log.damage
    assert [each.reason for each in missing] == ["segments are missing"]
    verify(log)
    assert log.damage == missing
    for segment in log.segments[:-1]:
        path = segment.path_of(".digest")
        assert path.read_bytes() == expected[path]


def verify(log: Log) -> None:
    """Verify the whole log, as the scrubber does."""
    for segment in log.segments:
        position = 0
        while position < segment.size:
            position = log.verify_segment(segment, position, 10_000)
        log.write_missing_digest(segment)


def closed_log(directory: Path) -> list[bytes]:
    """Write a log in which some blocks contain several batches and some batches span several blocks. Returns its
    values."""
    log, values = open_log(directory, LARGE), []
    for number in range(150):
        values.append(b"%d:" % number + bytes([0, 3000, 20_000, 90_000][number % 4]))
        append(log, values[-1], epoch=number // 40)
    log.close()
    return values


def of_other_batches(directory: Path) -> None:
    """Replace a segment's digest with that of another segment of the same size."""
    path, *_ = sorted(directory.glob("*.digest"))
    digest = read_digest(path)
    assert digest is not None
    write_digest(path, replace(digest, checksums=array("I", [each ^ 1 for each in digest.checksums])))


def of_other_headers(directory: Path) -> None:
    """Replace the checksums of the headers in a segment's digest."""
    path, *_ = sorted(directory.glob("*.digest"))
    digest = read_digest(path)
    assert digest is not None
    write_digest(path, replace(digest, checksums=array("I", [n ^ i & 1 for i, n in enumerate(digest.checksums)])))


def damaged_digest(directory: Path) -> None:
    """Flip a byte of a digest."""
    path, *_ = sorted(directory.glob("*.digest"))
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", [of_other_batches, of_other_headers, damaged_digest])
@pytest.mark.parametrize("clean", [True, False])
def test_a_wrong_digest_of_intact_batches_is_written_again(
    tmp_path: Path, spoil: Callable[[Path], None], clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The batches are trusted: every record stays readable, one log line names the digest, and the scrubber writes a
    new one."""
    values = closed_log(tmp_path)
    path, *_ = sorted(tmp_path.glob("*.digest"))
    expected = path.read_bytes()
    spoil(tmp_path)
    caplog.clear()
    knows_epochs = clean or spoil is of_other_headers  # recovery rebuilds higher epochs from the batches
    log = open_log(tmp_path, LARGE, clean=clean, recovery_point=150 if knows_epochs else 0, same_boot=True)
    assert values_of(log) == dict(enumerate(values))
    verify(log)
    assert not log.damage
    assert path.read_bytes() == expected
    if spoil is not damaged_digest:
        (line,) = [record for record in caplog.records if "digest" in record.message]
        assert "wrong" in line.message
    log.close()


def test_a_directory_in_place_of_a_digest_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path)
    values = fill(log, 100)
    log.close()
    for path in tmp_path.glob("*.digest"):
        path.unlink()
        path.mkdir()
    errors: list[OSError] = []
    log = open_log(tmp_path, clean=True, recovery_point=100, on_io_error=errors.append)
    verify(log)
    assert values_of(log) == dict(enumerate(values))
    values += fill(log, 50)
    log.truncate_to(70)
    log.high_watermark = 70
    log.advance_log_start(50)
    for path in apply_retention(log, NOW):
        path.unlink()
    log.release()
    log = open_log(tmp_path, log_start_offset=50, on_io_error=errors.append)
    assert values_of(log) == {n: values[n] for n in range(50, 70)}
    log.close()
    assert not errors
    assert "it is a directory, but must be a file" in caplog.text


@pytest.mark.parametrize("at", [6, 14], ids=["base offset", "leader epoch"])
@pytest.mark.parametrize("step", [1, 3])
def test_an_altered_header_is_damage(tmp_path: Path, at: int, step: int) -> None:
    """No checksum of a batch covers these bytes. Only the batches in the same block as the altered header are lost."""
    values = closed_log(tmp_path)
    log = open_log(tmp_path, LARGE, clean=True, recovery_point=150)
    for segment in log.segments[1:-1]:
        positions = [position for position, _ in segment.batches()]
        data = bytearray(segment.path_of(".log").read_bytes())
        data[positions[len(positions) // 2] + at] ^= 64 if at == 14 else 1
        segment.path_of(".log").write_bytes(data)
    log.release()
    log = open_log(tmp_path, LARGE, clean=True, recovery_point=150)
    refused = set()
    for offset in range(0, 150, step):
        try:
            log.read(offset, 1, up_to=150)
        except KafkaError as error:
            assert error.code == ErrorCode.CORRUPT_MESSAGE  # noqa: PT017
            refused.add(offset)
    verify(log)
    refused = {n for each in log.damage for n in range(each.first_offset, each.last_offset + 1)}
    assert len(log.damage) == len(log.segments) - 2
    assert values_of(log) == {n: value for n, value in enumerate(values) if n not in refused}
    assert len(refused) <= 4 * len(log.damage)
    log.release()


@pytest.mark.parametrize("into", [0, 6, 7, 8], ids=lambda into: f"{into} bytes of the next header")
def test_zeros_that_reach_into_the_next_header_alter_no_offset(tmp_path: Path, into: int) -> None:
    """The batch after the damage has a valid checksum, but claims an offset within the damaged range."""
    log = open_log(tmp_path, LARGE)
    values = fill(log, 20)
    log.close()
    (segment,) = log.segments
    positions = [position for position, _ in segment.batches()]
    data = bytearray(segment.path_of(".log").read_bytes())
    data[positions[0] + 10 : positions[10] + into] = bytes(positions[10] + into - positions[0] - 10)
    data[positions[10] + 7] = 10 if into < 8 else 3
    segment.path_of(".log").write_bytes(data)
    log = open_log(tmp_path, LARGE, clean=True, recovery_point=20)
    first_good = 10 if into < 8 else 11
    assert values_of(log) == {n: values[n] for n in range(first_good, 20)}
    assert [(each.first_offset, each.last_offset) for each in log.damage] == [(0, first_good - 1)]
    log.release()


def test_sealed_segments_and_closed_ones_have_a_digest(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 60)

    def with_digest() -> list[str]:
        return sorted(path.stem for path in tmp_path.glob("*.digest"))

    names = [f"{segment.base_offset:020d}" for segment in log.segments]
    assert with_digest() == names[:-1]
    log.close()
    assert with_digest() == names
    for segment in log.segments:
        digest = segment.digest()
        assert digest is not None
        data = segment.path_of(".log").read_bytes()
        assert list(digest.checksums) == sums_of(data)
    log = open_log(tmp_path, clean=True, recovery_point=60)
    assert with_digest() == names
    fill(log, 1)
    assert with_digest() == names[:-1]
    log.close()
    digest = log.segments[-1].digest()
    assert digest is not None
    assert list(digest.checksums) == sums_of(log.segments[-1].path_of(".log").read_bytes())
