"""The topic of source offsets, including records that no worker has written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from parley.pipeline.client.cluster import Connection
from parley.pipeline.connect.distributed.log import MemoryLog
from parley.pipeline.connect.distributed.offset_topic import TopicOffsetStore

WHERE = b'["src",{"filename":"f"}]'


async def test_malformed_records_of_the_offset_topic_are_skipped() -> None:
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


class Kept(MemoryLog):
    """A log whose records the test inspects."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[bytes, bytes | None]] = []

    async def send(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        self.records += records
        await super().send(records)


async def test_a_topic_of_its_own_counts_before_the_workers() -> None:
    workers_log, own_log = Kept(), Kept()
    opened: list[str] = []

    def open_log(connection: Connection, topic: str) -> Kept:
        opened.append(topic)
        return own_log

    workers = TopicOffsetStore(workers_log, asyncio.get_running_loop(), open_log)
    await asyncio.to_thread(workers.start)
    one, two, three = ({"filename": name} for name in ("one", "two", "three"))
    await asyncio.to_thread(workers.store, "src", [(one, {"position": 1}), (two, {"position": 2})])
    connection = Connection(bootstrap="127.0.0.1:9092")
    own = await asyncio.to_thread(workers.at, connection, "own")
    assert await asyncio.to_thread(workers.at, connection, "own") is own
    assert opened == ["own"]
    await asyncio.to_thread(own.store, "src", [(two, {"position": 20}), (three, {"position": 30})])
    assert len(workers_log.records) == 2
    assert await asyncio.to_thread(own.get, "src", [three, two, one]) == [
        {"position": position} for position in (30, 20, 1)
    ]
    assert await asyncio.to_thread(own.all, "src") == [
        (one, {"position": 1}),
        (two, {"position": 20}),
        (three, {"position": 30}),
    ]
    assert own.encoded("src", [(two, None), (three, {"position": 31})]) == [
        (b'["src",{"filename":"two"}]', None),
        (b'["src",{"filename":"three"}]', b'{"position":31}'),
    ]
    await asyncio.to_thread(own.store, "src", [(one, None), (two, None)])
    assert await asyncio.to_thread(own.all, "src") == [(three, {"position": 30})]
    assert await asyncio.to_thread(workers.all, "src") == []
    await asyncio.to_thread(workers.stop)
