"""The digest of a segment: as it is built, written, read, and continued."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.storage.segment_digest import BLOCK, CorruptDigest, DigestBuilder, SegmentDigest, read_digest, write_digest
from tests.storage.logs import fill, open_log
from tests.support.proportion import examples

SIZES = st.lists(st.sampled_from([1, 100, 5000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]), max_size=8)


@settings(max_examples=examples(50), deadline=None)
@given(sizes=SIZES, closed_after=st.integers(0, 8))
def test_every_block_has_its_checksum(sizes: list[int], closed_after: int) -> None:
    data, builder, at = Random(1).randbytes(sum(sizes)), DigestBuilder(), 0
    for number, size in enumerate(sizes):
        if number == closed_after:
            continued = DigestBuilder.of(SegmentDigest.decode(builder.digest(0).encode()))
            assert continued is not None
            builder = continued
        builder.add(data[at : at + size])
        at += size
    digest = SegmentDigest.decode(builder.digest(77).encode())
    assert (digest.size, digest.end_offset) == (len(data), 77)
    assert list(digest.checksums) == [crc32c(data[n : n + BLOCK]) for n in range(0, len(data), BLOCK)]


@settings(max_examples=examples(200), deadline=None)
@given(data=st.binary(max_size=60), seed=st.integers(0, 2**32))
def test_any_bytes_are_a_digest_or_refused(data: bytes, seed: int) -> None:
    random, builder = Random(seed), DigestBuilder()
    builder.add(bytes(3 * BLOCK))
    encoded = bytearray(builder.digest(9).encode())
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
        assert list(digest.checksums) == [crc32c(data)]
    log = open_log(tmp_path, clean=True, recovery_point=60)
    assert with_digest() == names
    fill(log, 1)
    assert with_digest() == names[:-1]
    log.close()
    digest = log.segments[-1].digest()
    assert digest is not None
    assert list(digest.checksums) == [crc32c(log.segments[-1].path_of(".log").read_bytes())]
