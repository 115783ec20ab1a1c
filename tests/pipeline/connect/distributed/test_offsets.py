"""The topic of source offsets, with records in it that no worker has written."""

from __future__ import annotations

import asyncio

from parley.pipeline.connect.distributed.log import MemoryLog
from parley.pipeline.connect.distributed.offsets import TopicOffsetStore

WHERE = b'["src",{"filename":"f"}]'


async def test_what_makes_no_sense_is_skipped() -> None:
    log = MemoryLog()
    store = TopicOffsetStore(log, asyncio.get_running_loop())
    await asyncio.to_thread(store.start)
    records: list[tuple[bytes, bytes | None]] = [
        (WHERE, b'{"position":4}'),
        (b"\xff\xfe", b"\x00"),
        (b"[", b"{}"),
        (b'["src"]', b'{"x":1}'),
        (b'["src",5]', b'{"x":1}'),
        (b'[5,{"filename":"f"}]', b'{"x":1}'),
        (b'["src",{"filename":"g"}]', b"7"),
        (b'["src",{"filename":"g"}]', b"[]"),
        (WHERE, b"no JSON"),
    ]
    await log.send(records)
    assert await asyncio.to_thread(store.all, "src") == [({"filename": "f"}, {"position": 4})]
    await log.send([(WHERE, None)])
    assert await asyncio.to_thread(store.all, "src") == []
