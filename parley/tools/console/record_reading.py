"""Read records of a topic's partitions, for the pages that show them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

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
_FETCH_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class Scan:
    """The progress of a search: the next offset of each partition, and its end offset."""

    at: dict[int, int]
    ends: dict[int, int]
    scanned: int = 0


async def fetch(
    client: Client, name: str, at: Mapping[int, int], scan: Scan, wait_ms: int = 0
) -> list[tuple[int, Record]]:
    """Fetch the next records of the partitions, some from each."""
    by_node: dict[int, dict[int, int]] = {}
    for index, offset in at.items():
        by_node.setdefault(await client.leader(name, index), {})[index] = offset
    answers = await asyncio.gather(*(_fetch_from(client, node, name, each, wait_ms) for node, each in by_node.items()))
    found: list[tuple[int, Record]] = []
    for answer in answers:
        for part in answer.responses[0].partitions if answer.responses else ():
            if part.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                await client.metadata([name])
                continue
            refuse(part.error_code)
            begin = scan.at[part.partition_index]
            for one in _records(part.records or b"", begin, scan, part.partition_index):
                scan.scanned += 1
                found.append((part.partition_index, one))
    return found


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


def _records(data: Any, begin: int, scan: Scan, index: int) -> Iterator[Record]:
    """Yield the records of complete batches from an offset on. Control batches only advance the position."""
    pos = 0
    while pos + HEADER_SIZE <= len(data):
        header = read_header(data, pos)
        if pos + header.size_bytes > len(data):
            return
        if header.is_control:
            scan.at[index] = max(scan.at[index], header.base_offset + header.last_offset_delta + 1)
        else:
            try:
                yield from (one for one in records(data, pos) if one.offset >= begin)
            except (CorruptRecord, InvalidRecord) as error:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"partition {index}: {error}") from None
        pos += header.size_bytes
