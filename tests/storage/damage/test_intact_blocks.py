"""The fast path of a verification accepts intact blocks only, and reads each byte once."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley import compiled
from parley.protocol.records.batch_header import HEADER_SIZE, headers
from parley.storage.damage import intact_blocks
from parley.storage.damage.intact_blocks import READ
from parley.storage.damage.segment_digest import BLOCK, DigestBuilder, SegmentDigest
from parley.storage.segment_file import SegmentFile
from tests.storage.logs import batch_of
from tests.support.proportion import examples

SIZES = st.lists(
    st.sampled_from([1, 100, 5000, BLOCK - 80, BLOCK, BLOCK + 1, 3 * BLOCK + 7, READ - 300, READ, 2 * READ + 9]),
    min_size=1,
    max_size=12,
)


def from_source() -> ModuleType:
    """Return the module loaded from its source under another name."""
    name, source = "intact_blocks_from_source", str(compiled.source_of(intact_blocks.__name__))
    spec = importlib.util.spec_from_file_location(name, source, loader=SourceFileLoader(name, source))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = pytest.mark.parametrize("module", [intact_blocks, from_source()], ids=["as installed", "from its source"])


def segment_of(sizes: list[int]) -> tuple[bytearray, SegmentDigest]:
    """Return the bytes and the digest of a segment with batches of these sizes."""
    data, builder = bytearray(), DigestBuilder()
    for number, size in enumerate(sizes):
        batch = batch_of(bytes(size), base_offset=number)
        builder.add(batch, [header for _, header in headers(batch)])
        data += batch
    return data, builder.digest(len(sizes))


@MODULES
@settings(max_examples=examples(100), deadline=None)
@given(
    sizes=SIZES, first=st.integers(0, 40), count=st.integers(1, 40), at=st.integers(0, 1 << 22), bit=st.integers(0, 7)
)
def test_only_intact_blocks_are_accepted(
    tmp_path_factory: pytest.TempPathFactory,
    module: ModuleType,
    sizes: list[int],
    first: int,
    count: int,
    at: int,
    bit: int,
) -> None:
    """Any bytes of the blocks may be altered, also those that only the digest covers; or the file ends early."""
    data, digest = segment_of(sizes)
    first %= -(-len(data) // BLOCK)
    end = min((first + count) * BLOCK, len(data))
    batches = [(at, at + header.size_bytes) for at, header in headers(data) if first * BLOCK <= at < end]
    begin, last = (batches[0][0], batches[-1][1]) if batches else (end, end)
    path = tmp_path_factory.getbasetemp() / "segment.log"

    def intact_to(content: bytes | bytearray) -> int:
        path.write_bytes(content)
        found: int = module.intact_to(digest, SegmentFile(path), begin, end, first)
        return found

    assert intact_to(data) == last
    if begin < last:
        at = begin + at % (last - begin)
        assert intact_to(data[:at]) == -1
        data[at] ^= 1 << bit
        assert intact_to(data) == -1


class CountingFile(SegmentFile):
    """A file that counts what is read."""

    __slots__ = ("bytes_read", "reads")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.bytes_read = self.reads = 0

    def read(self, size: int, position: int, *, nowait: bool = False) -> bytes | bytearray:
        data = super().read(size, position, nowait=nowait)
        self.bytes_read += len(data)
        self.reads += 1
        return data


@MODULES
@pytest.mark.parametrize("size", [100, 16_000, 150_000, 1_000_000])
def test_each_byte_is_read_once(tmp_path: Path, module: ModuleType, size: int) -> None:
    """A batch that ended after the bytes in memory was once read again from its start: with batches of 150 KB, all
    bytes were read almost twice."""
    data, digest = segment_of([size] * (3_000_000 // size))
    path = tmp_path / "segment.log"
    path.write_bytes(data)
    file = CountingFile(path)
    assert module.intact_to(digest, file, 0, len(data), 0) == len(data)
    assert file.reads <= 2 * -(-len(data) // READ)
    assert file.bytes_read <= len(data) + file.reads * HEADER_SIZE


@MODULES
def test_an_altered_length_does_not_read_the_rest_of_the_segment(tmp_path: Path, module: ModuleType) -> None:
    data, digest = segment_of([100, 100])
    data[8:12] = (module.BATCH_MAX + 1).to_bytes(4, "big")
    path = tmp_path / "segment.log"
    path.write_bytes(data)
    file = CountingFile(path)
    assert module.intact_to(digest, file, 0, len(data), 0) == -1
    assert file.reads == 1
