"""How the console reads batches: in pieces, with turns for others, and never past records that were not used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest

from parley.protocol.client import Client
from parley.protocol.messages.fetch import FetchResponse
from parley.protocol.records.batch import build, records
from parley.protocol.records.compression import Compression
from parley.protocol.records.record import Record
from parley.tools.console import record_reading
from parley.tools.console.record_reading import Scan, fetch


class _Leader:
    """Answers Fetch requests with the same bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def leader(self, name: str, index: int) -> int:
        """Return the id of the leader."""
        return 1

    async def version_for(self, request: Any, node: int) -> int:
        """Return the version of Fetch."""
        return 12

    async def send(self, request: Any, node: int, version: int) -> FetchResponse:
        """Return the response."""
        part = FetchResponse.PartitionData(partition_index=0, high_watermark=0, records=self._data)
        return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[part])])


def _batch(count: int, base: int = 0, compression: Compression = Compression.NONE, control: bool = False) -> bytes:
    listed = [Record(0, 0, None, b"v")] * count
    return bytes(build(listed, base_offset=base, compression=compression, control=control))


def _fetched(data: bytes, scan: Scan) -> AsyncIterator[tuple[int, list[Record]]]:
    return fetch(cast(Client, _Leader(data)), "t", dict(scan.at), scan)


async def _offsets(data: bytes, scan: Scan) -> list[int]:
    return [one.offset async for _, piece in _fetched(data, scan) for one in piece]


async def test_a_large_batch_is_decoded_only_as_far_as_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0

    def counted(data: bytes, pos: int) -> Iterator[Record]:
        nonlocal decoded
        for one in records(data, pos):
            decoded += 1
            yield one

    monkeypatch.setattr(record_reading, "records", counted)
    _, piece = await anext(_fetched(_batch(20_000, compression=Compression.GZIP), Scan({0: 0}, {0: 20_000})))
    assert piece[0].offset == 0
    assert decoded == len(piece) <= 500


async def test_others_have_their_turns_while_records_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_reading, "TURN_S", 0.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    assert await _offsets(_batch(20_000), Scan({0: 19_999}, {0: 20_000})) == [19_999]
    other.cancel()
    assert turns >= 20_000 / 500


async def test_a_search_does_not_read_past_its_end() -> None:
    scan = Scan({0: 3}, {0: 7})
    assert await _offsets(_batch(10) + _batch(10, 10), scan) == [3, 4, 5, 6]


async def test_without_an_end_all_batches_are_read_and_control_batches_passed() -> None:
    scan = Scan({0: 8}, {})
    assert await _offsets(_batch(10) + _batch(1, 10, control=True) + _batch(2, 11) + _batch(9, 13)[:-1], scan) == [
        8, 9, 11, 12,
    ]  # fmt: skip
    assert scan.at == {0: 13}


async def test_a_search_that_stops_inside_a_batch_does_not_pass_the_control_batch_behind_it() -> None:
    scan = Scan({0: 0}, {0: 11})
    async for _, piece in _fetched(_batch(10) + _batch(1, 10, control=True), scan):
        scan.at[0] = piece[4].offset + 1
        break
    assert scan.at == {0: 5}
