"""Read records of a topic's partitions, for the pages that show them.

A batch may contain a million records. Therefore records are decoded in pieces, when they are needed, and other requests
continue in between. Only decompression handles a whole batch, so it runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import HEADER_SIZE, read_header
from parley.protocol.records.errors import CorruptRecord, InvalidRecord
from parley.protocol.records.record import Record
from parley.tools.console.answers import refuse

BY_NAME_VERSION_MAX: Final = 12
"""The last version of Fetch and Produce with topic names instead of ids."""
TURN_S: Final = 0.005
"""The time, in seconds, after which work in the event loop lets other requests continue."""
_OFFSET_MAX: Final = 2**63 - 1
_FETCH_BYTES: Final = 1024 * 1024
_PIECE_RECORDS: Final = 500
_SMALL_BYTES: Final = 1024
"""The size up to which a batch is decompressed in the event loop. Decompressed, such a batch has at most about 32
MiB."""


@dataclass(slots=True)
class Scan:
    """The progress of a search: the next offset of each partition, and the end offset of those that have an end."""

    at: dict[int, int]
    ends: dict[int, int]
    scanned: int = 0


class TimeSlice:
    """The time for which a long task may work in the event loop before other requests continue."""

    def __init__(self) -> None:
        self._begun = SYSTEM_CLOCK.monotonic()

    async def end_if_used(self) -> None:
        """Let other requests continue if this task has worked for ``TURN_S``."""
        if SYSTEM_CLOCK.monotonic() - self._begun >= TURN_S:
            await asyncio.sleep(0)
            self._begun = SYSTEM_CLOCK.monotonic()


async def fetch(
    client: Client, name: str, at: Mapping[int, int], scan: Scan, wait_ms: int = 0
) -> AsyncIterator[tuple[int, list[Record]]]:
    """Fetch the next records of the partitions, some from each, and yield them in pieces with their partition.

    ``at`` has the fetch offsets. ``scan.at`` advances over each batch that was yielded completely. A caller that may
    stop inside a batch advances it over the records that it has used. Waits for records for at most ``wait_ms``. Skips
    a partition whose leader has moved; the next call finds the new leader. Raises KafkaError if a partition cannot be
    read.
    """
    by_node: dict[int, dict[int, int]] = {}
    for index, offset in at.items():
        by_node.setdefault(await client.leader(name, index), {})[index] = offset
    answers = await asyncio.gather(*(_fetch_from(client, node, name, each, wait_ms) for node, each in by_node.items()))
    time_slice = TimeSlice()
    for answer in answers:
        for part in answer.responses[0].partitions if answer.responses else ():
            if part.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                await client.metadata([name])
                continue
            refuse(part.error_code)
            async for piece in _records(part.records or b"", scan, part.partition_index, time_slice):
                yield part.partition_index, piece


async def _fetch_from(client: Client, node: int, name: str, at: Mapping[int, int], wait_ms: int) -> Any:
    version = min(await client.version_for(FetchRequest, node=node), BY_NAME_VERSION_MAX)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1 if wait_ms else 0,
        max_bytes=_FETCH_BYTES,
        topics=[
            FetchRequest.FetchTopic(
                topic=name,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=index, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES // len(at) + 1
                    )
                    for index, offset in at.items()
                ],
            )
        ],
    )
    return await client.send(request, node=node, version=version)


async def _records(data: Any, scan: Scan, index: int, time_slice: TimeSlice) -> AsyncIterator[list[Record]]:
    """Yield the records of complete batches in pieces, from the position in ``scan`` to its end. Advances the position
    over each batch that was used. Raises KafkaError (CORRUPT_MESSAGE) if a batch is damaged."""
    begin, end, pos = scan.at[index], scan.ends.get(index, _OFFSET_MAX), 0
    while pos + HEADER_SIZE <= len(data):
        await time_slice.end_if_used()
        header = read_header(data, pos)
        if pos + header.size_bytes > len(data):
            return
        if not header.is_control:
            pieces = _pieces(data, pos, begin, end)
            is_small = header.size_bytes <= _SMALL_BYTES
            try:
                piece = next(pieces, None) if is_small else await asyncio.to_thread(next, pieces, None)
                while piece is not None:
                    if piece:
                        yield piece
                    await time_slice.end_if_used()
                    piece = next(pieces, None)
            except (CorruptRecord, InvalidRecord) as error:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"partition {index}: {error}") from None
        scan.at[index] = max(scan.at[index], header.base_offset + header.last_offset_delta + 1)
        if scan.at[index] >= end:
            return
        pos += header.size_bytes


def _pieces(data: Any, pos: int, begin: int, end: int) -> Iterator[list[Record]]:
    """Yield the records of a batch in this range of offsets, in pieces. A piece is empty if all its records are below
    the range."""
    found = records(data, pos)
    while piece := list(islice(found, _PIECE_RECORDS)):
        yield [one for one in piece if begin <= one.offset < end]
        if piece[-1].offset >= end:
            return
