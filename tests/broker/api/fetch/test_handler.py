"""Fetch: order and limits, waiting, sessions, isolation of errors, old clients."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parley.broker.api.fetch import handler
from parley.broker.api.fetch.handler import FetchApi
from parley.broker.api.fetch.read import SENT_FROM_FILE_BYTES
from parley.broker.api.fetch.sessions import LOOK_AT_ALL_S, FetchSessions
from parley.broker.network.sending import FileSlice
from parley.broker.replication.follower_progress import NEVER_S
from parley.broker.runtime.turns import next_turn
from parley.protocol.codec import response_frame
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import headers
from parley.protocol.uuids import UUID
from parley.storage.log_config import LogConfig
from parley.storage.resource_exhaustion import MEMORY, no_memory
from tests.broker.api.bench import BROKER, NOW_MS, OTHER, Bench, batch, context
from tests.storage.compaction.compactions import compacted
from tests.support.memory import nothing_is_in_memory
from tests.support.uuids import new_uuid

MAX = 1 << 30


class FetchBench(Bench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.seconds = 0.0
        self.sessions = FetchSessions(10, random.Random(3), lambda: self.seconds)
        self.may_be_superseded = False
        self.api = FetchApi(
            self.partitions,
            self.metadata,
            self.sessions,
            self.purgatories.fetch,
            self.tasks,
            max_bytes=MAX,
            may_be_superseded=lambda: self.may_be_superseded,
        )

    async def fetch(self, *asked: Any, version: int = 12, **request: Any) -> FetchResponse:
        answer = self.begin(*asked, version=version, **request)
        while not isinstance(answer, FetchResponse):
            answer = await answer
        return answer

    def begin(self, *asked: Any, version: int = 12, **request: Any) -> Any:
        request = {"max_wait_ms": 0, "min_bytes": 1, "topics": topics(*asked), **request}
        return self.api.fetch(context(version), FetchRequest(**request))


def ask(
    topic: str | UUID, offset: int = 0, *, index: int = 0, max_bytes: int = MAX, **fields: Any
) -> tuple[str | UUID, FetchRequest.FetchPartition]:
    return topic, FetchRequest.FetchPartition(
        partition=index, fetch_offset=offset, partition_max_bytes=max_bytes, **fields
    )


def topics(*asked: tuple[str | UUID, FetchRequest.FetchPartition]) -> list[FetchRequest.FetchTopic]:
    return [
        FetchRequest.FetchTopic(topic_id=topic, partitions=[partition])
        if isinstance(topic, UUID)
        else FetchRequest.FetchTopic(topic=topic, partitions=[partition])
        for topic, partition in asked
    ]


def content(data: FetchResponse.PartitionData) -> bytes:
    """Return the record bytes, including those that would be sent from the file."""
    parts = data.records
    if parts is None or isinstance(parts, bytes | bytearray | memoryview):
        return bytes(parts or b"")
    return b"".join(p.read(0, p.size) if isinstance(p, FileSlice) else bytes(p) for p in parts)


def offsets(data: FetchResponse.PartitionData) -> list[int]:
    raw = content(data)
    return [record.offset for position, _ in headers(raw) for record in records(raw, position)]


def found(answer: FetchResponse) -> list[tuple[str, int, int, list[int]]]:
    """Return topic, partition, error and offsets of each partition in the response, in order."""
    return [
        (topic.topic, data.partition_index, data.error_code, offsets(data))
        for topic in answer.responses
        for data in topic.partitions
    ]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[FetchBench]:
    bench = FetchBench(tmp_path)
    yield bench
    await bench.tasks.close()
    assert bench.purgatories.fetch.waiting == 0


async def test_reads_whole_batches_from_the_offset(bench: FetchBench) -> None:
    await bench.create("t")
    bench.write("t", 3)
    bench.write("t", 2)
    assert found(await bench.fetch(ask("t", 0))) == [("t", 0, 0, [0, 1, 2, 3, 4])]
    assert found(await bench.fetch(ask("t", 3))) == [("t", 0, 0, [3, 4])]
    assert found(await bench.fetch(ask("t", 1))) == [("t", 0, 0, [0, 1, 2, 3, 4])], "the batch that holds the offset"
    assert found(await bench.fetch(ask("t", 5))) == [("t", 0, 0, [])]
    data = (await bench.fetch(ask("t", 0))).responses[0].partitions[0]
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (5, 5, 0)
    assert data.aborted_transactions is None
    data = (await bench.fetch(ask("t", 0), isolation_level=1)).responses[0].partitions[0]
    assert data.aborted_transactions == []


async def test_large_reads_are_sent_from_the_file(bench: FetchBench) -> None:
    await bench.create("t")
    bench.write("t", size=SENT_FROM_FILE_BYTES)
    data = (await bench.fetch(ask("t", 0))).responses[0].partitions[0]
    assert isinstance(data.records, list)
    assert isinstance(data.records[0], FileSlice)
    assert offsets(data) == [0]


@pytest.mark.parametrize("size", [10, 2000, SENT_FROM_FILE_BYTES])
async def test_records_that_are_not_in_memory_are_read_in_a_thread(
    bench: FetchBench, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    await bench.create("t")
    bench.write("t", size=size)
    nothing_is_in_memory(monkeypatch)
    answer = await bench.fetch(ask("t"))
    assert found(answer) == [("t", 0, 0, [0])]
    parts = response_frame(answer, 12, 1)
    assert any(isinstance(part, FileSlice) for part in parts) is (size == SENT_FROM_FILE_BYTES)


@pytest.mark.parametrize(
    ("size", "version", "what"),
    [
        (2000, 12, "parley.storage.log_reader.LogRead.read"),
        (SENT_FROM_FILE_BYTES, 12, "parley.broker.network.sending.FileSlice.load"),
        (2000, 2, "parley.broker.api.fetch.read.to_legacy"),
    ],
)
async def test_records_without_memory_to_read_them_may_be_fetched_again(
    bench: FetchBench, monkeypatch: pytest.MonkeyPatch, size: int, version: int, what: str
) -> None:
    monkeypatch.setattr(MEMORY, "lost_work", None)
    await bench.create("t")
    bench.write("t", size=size)
    nothing_is_in_memory(monkeypatch)

    def failing(*_: Any, **__: Any) -> None:
        if what.endswith("LogRead.read"):
            raise no_memory("a test")
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(what, failing)
        answer = await bench.fetch(ask("t"), version=version)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert MEMORY.lost_work is None
    assert found(await bench.fetch(ask("t"))) == [("t", 0, 0, [0])]


async def test_the_first_batch_is_returned_beyond_any_limit(bench: FetchBench) -> None:
    for name in "ab":
        await bench.create(name)
        bench.write(name, size=2000)
        bench.write(name, size=2000)
    both = ask("a", max_bytes=10), ask("b", max_bytes=10)
    assert found(await bench.fetch(*both)) == [("a", 0, 0, [0]), ("b", 0, 0, [])]
    assert found(await bench.fetch(ask("a"), ask("b"), max_bytes=1)) == [("a", 0, 0, [0]), ("b", 0, 0, [])]
    assert found(await bench.fetch(ask("a", 2), ask("b"), max_bytes=1)) == [("a", 0, 0, []), ("b", 0, 0, [0])]
    limited = await bench.fetch(ask("a", max_bytes=3000), ask("b", max_bytes=3000), max_bytes=4500)
    assert found(limited) == [("a", 0, 0, [0]), ("b", 0, 0, [0])]


async def test_each_mistake_fails_alone(bench: FetchBench) -> None:
    await bench.create("t")
    bench.write("t", 2)
    await bench.create("elsewhere", replicas=(OTHER,), leader=OTHER)
    await bench.create("fine")
    bench.alter("t", leader=BROKER)
    for asked, error in (
        (ask("t", 99), ErrorCode.OFFSET_OUT_OF_RANGE),
        (ask("t", -1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (ask("nothing"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ask("t", index=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ask("elsewhere"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ask("t", current_leader_epoch=0), ErrorCode.FENCED_LEADER_EPOCH),
        (ask("t", current_leader_epoch=2), ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        answer = await bench.fetch(asked, ask("fine"))
        assert [(topic, code) for topic, _, code, _ in found(answer)] == [
            (asked[0], error),
            ("fine", ErrorCode.NONE),
        ]
    assert found(await bench.fetch(ask("t", current_leader_epoch=1)))[0][2] == ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 11, 12])
async def test_a_possibly_superseded_leader_withholds_offset_out_of_range(bench: FetchBench, version: int) -> None:
    await bench.create("t")
    bench.write("t", 2)
    bench.may_be_superseded = True
    for offset, expected in (
        (3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, ErrorCode.NONE),
        (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
    ):
        assert found(await bench.fetch(ask("t", offset), version=version))[0][2] == expected
    bench.may_be_superseded = False
    assert found(await bench.fetch(ask("t", 3), version=version))[0][2] == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_response_to_a_client_at_the_wrong_broker_names_the_leader(bench: FetchBench) -> None:
    topic_id = await bench.create("t", replicas=(OTHER,), leader=OTHER)
    answer = await bench.fetch(ask(topic_id), version=16)
    data = answer.responses[0].partitions[0]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (OTHER, 0)
    assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [(OTHER, "host2", 9092)]


async def test_consumers_read_committed_records_from_followers(bench: FetchBench) -> None:
    await bench.create("t", replicas=(OTHER, BROKER), leader=OTHER)
    partition = bench.partition("t")
    for offset in range(3):
        record = batch()
        record[:8] = offset.to_bytes(8, "big")
        partition.append_fetched(record, high_watermark=min(offset + 1, 2), log_start_offset=0)
    assert found(await bench.fetch(ask("t"), version=11)) == [("t", 0, 0, [0, 1])]
    assert found(await bench.fetch(ask("t"), version=10)) == [("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, [])]
    as_follower = await bench.fetch(ask("t", log_start_offset=0), version=11, replica_id=OTHER)
    assert found(as_follower) == [("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, [])]
    waiting = bench.begin(ask("t", 2), version=11, max_wait_ms=60_000)
    partition.append_fetched(None, high_watermark=3, log_start_offset=0)
    assert found(await waiting) == [("t", 0, 0, [2])]


async def test_a_broker_that_was_replaced_by_a_later_run_is_refused(bench: FetchBench) -> None:
    topic_id = await bench.create("t", replicas=(BROKER, OTHER))
    for epoch in (1, 2):
        state = FetchRequest.ReplicaState(replica_id=OTHER, replica_epoch=epoch)
        await bench.fetch(ask(topic_id, log_start_offset=0), version=15, replica_state=state)
    state = FetchRequest.ReplicaState(replica_id=OTHER, replica_epoch=0)
    with pytest.raises(KafkaError) as refused:
        await bench.fetch(ask(topic_id, log_start_offset=0), version=15, replica_state=state)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


async def test_topics_by_id(bench: FetchBench) -> None:
    topic_id = await bench.create("t")
    bench.write("t")
    answer = await bench.fetch(ask(topic_id), ask(new_uuid()), version=13)
    assert [(topic.topic_id == topic_id, topic.partitions[0].error_code) for topic in answer.responses] == [
        (True, ErrorCode.NONE),
        (False, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    bench.partition("t").topic_id = new_uuid()
    answer = await bench.fetch(ask(topic_id), version=13)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID


async def test_a_follower_whose_log_has_diverged_is_not_counted(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 3)
    bench.alter("t", leader=BROKER)
    bench.write("t", 3)
    await bench.fetch(ask("t", 5, last_fetched_epoch=0, log_start_offset=0), replica_id=OTHER, version=12)
    partition = bench.partition("t")
    assert partition.followers.progress[OTHER].log_end_offset == -1
    assert partition.high_watermark == 0
    await bench.fetch(ask("t", 3, last_fetched_epoch=0, log_start_offset=0), replica_id=OTHER, version=12)
    assert partition.followers.progress[OTHER].log_end_offset == partition.high_watermark == 3


@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "disk"])
async def test_a_follower_learns_up_to_where_tombstones_were_removed(
    bench: FetchBench, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    """It learns this in the same response as the records among which tombstones may be missing."""
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 3)
    bench.write("t", 3)
    bench.partition("t").log._tombstone_checkpoint.set(4)
    if not in_memory:
        nothing_is_in_memory(monkeypatch)
    for offset, removed_up_to in ((0, 4), (3, 4), (4, -1), (6, -1)):
        answer = await bench.fetch(ask("t", offset, log_start_offset=0), replica_id=OTHER, version=12)
        assert answer.responses[0].partitions[0].snapshot_id.end_offset == removed_up_to
    consumer = await bench.fetch(ask("t"), version=12)
    assert consumer.responses[0].partitions[0].snapshot_id.end_offset == -1


async def test_divergence_is_reported(bench: FetchBench) -> None:
    await bench.create("t")
    bench.write("t", 3)
    bench.alter("t", leader=BROKER)
    bench.write("t", 3)
    waiting = {"max_wait_ms": 60_000, "min_bytes": MAX}
    answer = await bench.fetch(ask("t", 5, last_fetched_epoch=0), **waiting)
    data = answer.responses[0].partitions[0]
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 3)
    assert not data.records
    assert found(await bench.fetch(ask("t", 3, last_fetched_epoch=0))) == [("t", 0, 0, [3, 4, 5])]
    answer = await bench.fetch(ask("t", 5, last_fetched_epoch=9))
    assert found(answer) == [("t", 0, ErrorCode.OFFSET_OUT_OF_RANGE, [])]


# Waiting.


async def test_waits_for_the_bytes_it_asked_for(bench: FetchBench) -> None:
    await bench.create("a")
    await bench.create("b")
    bench.write("a", size=1000)
    waiting = bench.begin(ask("a"), ask("b"), max_wait_ms=60_000, min_bytes=3000)
    bench.write("b", size=1000)
    assert not waiting.done()
    bench.write("a", size=1000)
    assert found(await waiting) == [("a", 0, 0, [0, 1]), ("b", 0, 0, [0])]


async def test_appends_of_one_moment_are_one_response(bench: FetchBench) -> None:
    await bench.create("a")
    await bench.create("b")
    waiting = bench.begin(ask("a"), ask("b"), max_wait_ms=60_000)
    for name in "aab":
        bench.write(name)
    assert found(await waiting) == [("a", 0, 0, [0, 1]), ("b", 0, 0, [0])]


async def test_a_fetch_of_very_many_partitions_notices_changes_during_its_look(
    bench: FetchBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "LOOKED_AT_IN_A_TURN", 2)
    await bench.create("t", partitions=7)
    asked = [ask("t", index=index) for index in range(7)]
    answer = asyncio.ensure_future(bench.fetch(*asked, max_wait_ms=60_000))
    await next_turn()
    bench.write("t", index=0)  # it was looked at in the first turn
    assert found(await answer)[:2] == [("t", 0, 0, [0]), ("t", 1, 0, [])]


async def test_a_fetch_of_very_many_partitions_waits_and_has_sessions(
    bench: FetchBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "LOOKED_AT_IN_A_TURN", 2)
    await bench.create("t", partitions=7)
    first = await bench.fetch(*(ask("t", index=index) for index in range(7)), session_epoch=0)
    waiting = asyncio.ensure_future(bench.fetch(session_id=first.session_id, session_epoch=1, max_wait_ms=60_000))
    for _ in range(10):
        await next_turn()
    assert not waiting.done()
    bench.write("t", index=3)
    assert found(await waiting) == [("t", 3, 0, [0])]


async def test_waits_no_longer_than_it_asked_for(bench: FetchBench) -> None:
    await bench.create("t")
    waiting = bench.begin(ask("t"), max_wait_ms=10, min_bytes=1 << 20)
    bench.write("t")
    assert found(await waiting) == [("t", 0, 0, [0])], "what there is by then"
    assert found(await bench.fetch(ask("t", 1), max_wait_ms=10)) == [("t", 0, 0, [])]


async def test_an_error_or_nothing_to_fetch_ends_the_wait_at_once(bench: FetchBench) -> None:
    await bench.create("t")
    waiting = {"max_wait_ms": 60_000, "min_bytes": MAX}
    assert found(await bench.fetch(ask("t"), ask("nothing"), **waiting))[1][2] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found(await bench.fetch(**waiting)) == []
    assert found(await bench.fetch(ask("t"), max_wait_ms=60_000, min_bytes=0)) == [("t", 0, 0, [])]


async def test_losing_the_leadership_ends_the_wait(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    await bench.create("gone")
    moved = bench.begin(ask("t"), max_wait_ms=60_000, version=10)
    bench.alter("t", leader=OTHER)
    assert found(await moved) == [("t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, [])]
    deleted = bench.begin(ask("gone"), max_wait_ms=60_000)
    bench.delete("gone")
    assert found(await deleted) == [("gone", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])]


async def test_consumers_wait_until_the_isr_has_the_records(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    consumer = bench.begin(ask("t"), max_wait_ms=60_000)
    follower = bench.begin(ask("t", log_start_offset=0), max_wait_ms=60_000, replica_id=OTHER)
    bench.write("t", 3)
    assert found(await follower) == [("t", 0, 0, [0, 1, 2])]
    assert not consumer.done()
    ahead = bench.begin(ask("t", 3, log_start_offset=0), max_wait_ms=60_000, replica_id=OTHER)
    assert found(await consumer) == [("t", 0, 0, [0, 1, 2])]
    bench.alter("t", leader=OTHER)
    await ahead


@pytest.mark.parametrize("replica", [-2, -3, -(2**31)])
async def test_a_negative_replica_id_reads_as_a_consumer(bench: FetchBench, replica: int) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 3)
    assert found(await bench.fetch(ask("t"), replica_id=replica)) == [("t", 0, 0, [])]


# Old clients.


@pytest.mark.parametrize("version", range(4))
async def test_old_clients_get_messages_they_can_read(bench: FetchBench, version: int) -> None:
    await bench.create("t")
    bench.write("t", 3)
    data = (await bench.fetch(ask("t", 1), version=version)).responses[0].partitions[0]
    raw = content(data)
    assert [header.magic for _, header in headers(raw)] == [1 if version >= 2 else 0] * 2
    assert offsets(data) == [1, 2]


@pytest.mark.parametrize("version", range(4))
async def test_the_limits_apply_to_the_messages_that_old_clients_get(bench: FetchBench, version: int) -> None:
    for name in "ab":
        await bench.create(name)
        for _ in range(10):
            bench.partition(name).append(batch(1000, size=0), acks=1, now_ms=0)  # 8 KB, as messages more than 26 KB
    answer = await bench.fetch(ask("a", max_bytes=50_000), version=version)
    assert offsets(answer.responses[0].partitions[0]) == list(range(2000))
    answer = await bench.fetch(ask("a", max_bytes=1), version=version)
    assert offsets(answer.responses[0].partitions[0]) == list(range(1000)), "at least one batch"
    answer = await bench.fetch(ask("a"), ask("b"), version=version, max_bytes=100_000)
    assert [len(offsets(topic.partitions[0])) for topic in answer.responses] == [4000 if version < 2 else 3000, 0]


@pytest.mark.parametrize("version", range(4, 19))
async def test_newer_clients_get_batches_as_they_are(bench: FetchBench, version: int) -> None:
    topic_id = await bench.create("t")
    bench.partition("t").append(batch(3), acks=1, now_ms=0)
    answer = await bench.fetch(ask(topic_id if version >= 13 else "t"), version=version)
    assert offsets(answer.responses[0].partitions[0]) == [0, 1, 2]


# Sessions.


async def test_a_session_returns_only_changes(bench: FetchBench) -> None:
    for name in "abc":
        await bench.create(name)
    first = await bench.fetch(ask("a"), ask("b"), ask("c"), session_epoch=0)
    session = first.session_id
    assert session > 0
    assert [topic for topic, *_ in found(first)] == ["a", "b", "c"]
    again = await bench.fetch(session_id=session, session_epoch=1)
    assert (again.session_id, found(again)) == (session, [])
    bench.write("b")
    assert found(await bench.fetch(session_id=session, session_epoch=2)) == [("b", 0, 0, [0])]
    assert found(await bench.fetch(ask("b", 1), session_id=session, session_epoch=3)) == []
    forgotten = [FetchRequest.ForgottenTopic(topic="b", partitions=[0])]
    bench.write("b")
    assert found(await bench.fetch(session_id=session, session_epoch=4, forgotten_topics_data=forgotten)) == []


async def test_a_follower_that_drops_a_partition_is_not_counted_as_fetching_it(bench: FetchBench) -> None:
    await bench.create("a", replicas=(BROKER, OTHER))
    await bench.create("b", replicas=(BROKER, OTHER))
    follower: dict[str, int] = {"version": 12, "replica_id": OTHER}
    asked = [ask(name, log_start_offset=0) for name in "ab"]
    session = (await bench.fetch(*asked, session_epoch=0, **follower)).session_id
    bench.write("b")
    await bench.fetch(session_id=session, session_epoch=1, **follower)
    ends = ask("b", 1, log_start_offset=0, last_fetched_epoch=0)
    await bench.fetch(ends, session_id=session, session_epoch=2, **follower)
    forgotten = [FetchRequest.ForgottenTopic(topic="b", partitions=[0])]
    await bench.fetch(session_id=session, session_epoch=3, forgotten_topics_data=forgotten, **follower)
    fetched = {name: bench.partition(name).followers.progress[OTHER].last_fetched_s for name in "ab"}
    assert fetched["a"] > fetched["b"] == NEVER_S


async def test_a_session_waits_like_any_fetch(bench: FetchBench) -> None:
    for name in "abc":
        await bench.create(name)
    first = await bench.fetch(ask("a"), ask("b"), ask("c"), session_epoch=0)
    waiting = bench.begin(session_id=first.session_id, session_epoch=1, max_wait_ms=60_000)
    bench.write("c", 2)
    assert found(await waiting) == [("c", 0, 0, [0, 1])]


async def test_a_session_looks_only_at_changed_partitions(bench: FetchBench) -> None:
    await bench.create("quiet", 50, replicas=(BROKER, OTHER))
    await bench.create("t", replicas=(BROKER, OTHER))
    asked = [ask("quiet", index=index, log_start_offset=0, last_fetched_epoch=-1) for index in range(50)]
    follower = {"replica_id": OTHER, "version": 12}
    answer = await bench.fetch(*asked, ask("t", log_start_offset=0), session_epoch=0, **follower)
    session = bench.sessions._sessions[answer.session_id]
    assert found(await bench.fetch(session_id=session.id, session_epoch=1, **follower)) == []
    assert not session.changed
    waiting = bench.begin(session_id=session.id, session_epoch=2, max_wait_ms=60_000, **follower)
    bench.write("t", 2)
    assert [target.topic for target in session.changed] == ["t"]
    assert found(await waiting) == [("t", 0, 0, [0, 1])]
    waiting = bench.begin(
        ask("t", 2, log_start_offset=0, last_fetched_epoch=0),
        session_id=session.id,
        session_epoch=3,
        max_wait_ms=60_000,
        **follower,
    )
    assert bench.partition("t").high_watermark == 2
    await bench.idle()
    assert not waiting.done(), "a new high watermark can wait for the next records"
    bench.write("quiet", index=7)
    data = [data for topic in (await waiting).responses for data in topic.partitions]
    assert [(each.partition_index, each.high_watermark, len(offsets(each))) for each in data] == [(0, 2, 0), (7, 0, 1)]


async def test_a_session_finds_changes_without_a_notification(bench: FetchBench) -> None:
    await bench.create("t")
    bench.write("t", 1)
    bench.write("t", 1)
    answer = await bench.fetch(ask("t", 2), session_epoch=0)
    assert found(await bench.fetch(session_id=answer.session_id, session_epoch=1)) == []
    bench.partition("t").log.advance_log_start(1)
    bench.seconds = LOOK_AT_ALL_S
    late = await bench.fetch(session_id=answer.session_id, session_epoch=2)
    assert late.responses[0].partitions[0].log_start_offset == 1


async def test_a_followers_session_corrects_progress_reported_outside_of_it(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 3)
    follower: dict[str, Any] = {"replica_id": OTHER, "version": 12}
    asked = ask("t", 3, log_start_offset=0, last_fetched_epoch=0)
    answer = await bench.fetch(asked, session_epoch=0, **follower)
    await bench.fetch(session_id=answer.session_id, session_epoch=1, **follower)
    progress = bench.partition("t").followers.progress[OTHER]
    assert progress.log_end_offset == 3
    await bench.fetch(ask("t", log_start_offset=0), replica_id=OTHER, version=11)  # with the same replica id
    assert progress.log_end_offset == 0
    bench.seconds = LOOK_AT_ALL_S
    await bench.fetch(session_id=answer.session_id, session_epoch=2, **follower)
    assert progress.log_end_offset == 3


async def test_a_session_that_ended_is_unsubscribed(bench: FetchBench) -> None:
    await bench.create("t")
    answer = await bench.fetch(ask("t"), session_epoch=0)
    session = bench.sessions._sessions[answer.session_id]
    await bench.fetch(session_id=answer.session_id, session_epoch=-1)
    bench.write("t")
    assert not session.changed
    assert not bench.purgatories.fetch._subscribers


async def test_all_partitions_of_a_session_get_their_turn(bench: FetchBench) -> None:
    for name in "abc":
        await bench.create(name)
        for _ in range(3):
            bench.write(name, size=1000)
    limits = {"max_bytes": 1}
    answer = await bench.fetch(ask("a"), ask("b"), ask("c"), session_epoch=0, **limits)
    session, epoch = answer.session_id, 1
    at = dict.fromkeys("abc", 0)
    order = []
    for topic, _, _, new in found(answer):
        if new:
            order.append(topic)
            at[topic] = new[-1] + 1
    while len(order) < 9:
        moved = ask(order[-1], at[order[-1]])
        answer = await bench.fetch(moved, session_id=session, session_epoch=epoch, **limits)
        epoch += 1
        ((topic, _, _, new),) = [row for row in found(answer) if row[3]]
        order.append(topic)
        at[topic] = new[-1] + 1
    assert order[1:] == ["a", "b", "c", "a", "b", "c", "a", "b"] or sorted(order) == sorted("abc" * 3)
    assert all(order[i : i + 3] != [order[i]] * 3 for i in range(7))


async def test_a_session_reports_an_error_and_its_end(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    session = (await bench.fetch(ask("t", current_leader_epoch=0), session_epoch=0)).session_id
    bench.alter("t", leader=OTHER)
    moved: tuple[str, int, int, list[int]] = ("t", 0, ErrorCode.FENCED_LEADER_EPOCH, [])
    assert found(await bench.fetch(session_id=session, session_epoch=1)) == [moved]
    assert found(await bench.fetch(session_id=session, session_epoch=2)) == [moved]
    bench.alter("t", leader=BROKER)
    known = ask("t", current_leader_epoch=2)
    assert found(await bench.fetch(known, session_id=session, session_epoch=3)) == [("t", 0, 0, [])]
    assert found(await bench.fetch(session_id=session, session_epoch=4)) == []


async def test_sessions_must_be_continued_in_step(bench: FetchBench) -> None:
    topic_id = await bench.create("t")
    session = (await bench.fetch(ask("t"), session_epoch=0)).session_id

    async def refused(code: ErrorCode, version: int = 12, **request: Any) -> None:
        with pytest.raises(KafkaError) as error:
            await bench.fetch(version=version, **request)
        assert error.value.code == code

    await refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=session + 1, session_epoch=1)
    await refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session, session_epoch=2)
    await refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 13, session_id=session, session_epoch=1)
    assert (await bench.fetch(session_id=session, session_epoch=1)).session_id == session
    closed = await bench.fetch(ask("t"), session_id=session, session_epoch=-1)
    assert (closed.session_id, found(closed)) == (0, [("t", 0, 0, [])])
    await refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=session, session_epoch=2)
    by_id = await bench.fetch(ask(topic_id), session_epoch=0, version=13)
    assert (await bench.fetch(version=13, session_id=by_id.session_id, session_epoch=1)).responses == []


async def test_the_number_of_sessions_is_bounded(bench: FetchBench) -> None:
    for index in range(12):
        await bench.create(f"t{index}")
    small = [(await bench.fetch(ask("t0"), session_epoch=0)).session_id for _ in range(10)]
    assert bench.sessions.sessions == 10
    assert (await bench.fetch(ask("t0"), session_epoch=0)).session_id == 0, "no larger than what is there"
    larger = await bench.fetch(ask("t0"), ask("t1"), session_epoch=0)
    assert larger.session_id > 0
    assert bench.sessions.sessions == 10
    bench.seconds = 121.0
    kept = [s for s in small if s in bench.sessions._sessions]
    await bench.fetch(session_id=larger.session_id, session_epoch=1)
    late = await bench.fetch(ask("t0"), session_epoch=0)
    assert late.session_id > 0
    assert kept[0] not in bench.sessions._sessions, "the one unused for longest goes first"
    assert bench.sessions.evictions == 2
    assert bench.sessions.partitions == 11


async def test_a_client_that_disconnects_leaves_nothing_in_the_purgatory(bench: FetchBench) -> None:
    await bench.create("t")
    waiting = bench.begin(ask("t"), max_wait_ms=60_000)
    assert bench.purgatories.fetch.waiting == 1
    waiting.cancel()
    assert bench.purgatories.fetch.waiting == 0
    bench.write("t")
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_follower_whose_log_has_diverged_makes_no_progress(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 3)
    bench.alter("t", leader=BROKER)
    bench.write("t", 5)
    follower = {"replica_id": OTHER, "max_wait_ms": 0}
    partition = bench.partition("t")
    for asked in (ask("t", 8, log_start_offset=0, last_fetched_epoch=0), ask("t", 9, log_start_offset=0)):
        await bench.fetch(asked, **follower)
        assert partition.followers.progress[OTHER].log_end_offset == -1
        assert partition.high_watermark == 0
    await bench.fetch(ask("t", 3, log_start_offset=0, last_fetched_epoch=0), **follower)
    assert partition.high_watermark == 3


async def test_readers_of_committed_records_stop_at_the_first_open_transaction(bench: FetchBench) -> None:
    await bench.create("t")
    bench.write("t")
    bench.write_in_transaction("t", 7)
    bench.write("t")
    assert found(await bench.fetch(ask("t"), isolation_level=1)) == [("t", 0, 0, [0])]
    assert found(await bench.fetch(ask("t"))) == [("t", 0, 0, [0, 1, 2])]
    (topic,) = (await bench.fetch(ask("t"), isolation_level=1)).responses
    assert (topic.partitions[0].high_watermark, topic.partitions[0].last_stable_offset) == (3, 1)
    bench.end_transaction("t", 7)
    assert found(await bench.fetch(ask("t"), isolation_level=1)) == [("t", 0, 0, [0, 1, 2, 3])]


async def test_readers_of_committed_records_learn_the_aborted_transactions_of_their_range(bench: FetchBench) -> None:
    await bench.create("t")
    for producer, committed in ((1, False), (2, True), (3, False)):
        bench.write_in_transaction("t", producer)
        bench.end_transaction("t", producer, committed=committed)

    async def aborted(offset: int, isolation_level: int = 1) -> list[tuple[int, int]] | None:
        asked = ask("t", offset, max_bytes=150)
        data = (await bench.fetch(asked, isolation_level=isolation_level)).responses[0].partitions[0]
        named = data.aborted_transactions
        return None if named is None else [(each.producer_id, each.first_offset) for each in named]

    assert [await aborted(offset) for offset in range(6)] == [[(1, 0)], [(1, 0)], [], [], [(3, 4)], [(3, 4)]]
    assert await aborted(0, isolation_level=0) is None


async def test_a_transaction_index_that_another_program_cut_off_fails_its_partition_alone(bench: FetchBench) -> None:
    for topic in ("t", "u"):
        await bench.create(topic)
        bench.write_in_transaction(topic, 1)
        bench.end_transaction(topic, 1, committed=False)
    (index,) = bench.directory.glob("**/t-0/*.txnindex")
    os.truncate(index, 0)
    answer = await bench.fetch(ask("t"), ask("u"), isolation_level=1)
    assert found(answer) == [("t", 0, ErrorCode.KAFKA_STORAGE_ERROR, []), ("u", 0, 0, [0, 1])]
    assert found(await bench.fetch(ask("t"))) == [("t", 0, 0, [0, 1])], "other readers need no index"


async def test_a_compaction_during_the_wait_shows_readers_no_aborted_record(bench: FetchBench) -> None:
    """Two compactions remove the records and their entry in the transaction index. The fetch has found them before."""
    await bench.create("t", config=LogConfig(cleanup_policy=frozenset({"compact"})))
    await bench.create("u")
    bench.write_in_transaction("t", 1)
    bench.end_transaction("t", 1, committed=False)
    log = bench.partition("t").log
    log.roll()
    answer = bench.begin(ask("t"), ask("u"), isolation_level=1, max_wait_ms=60_000, min_bytes=1000)
    for _ in range(2):
        compacted(log, now_ms=NOW_MS)
    bench.write("u", size=1000)
    while not isinstance(answer, FetchResponse):
        answer = await answer
    assert 0 not in found(answer)[0][3]


async def test_a_follower_serves_committed_records_as_its_leader_does(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER), leader=OTHER)
    leader = Bench(bench.directory / "leader")
    leader.directory.mkdir()
    await leader.create("t")
    leader.write_in_transaction("t", 7)
    leader.end_transaction("t", 7, committed=False)
    leader.write_in_transaction("t", 8)
    log = leader.partition("t").log
    data = log.read(0, MAX, up_to=3).read()
    follower = bench.partition("t")
    follower.append_fetched(data, high_watermark=1, log_start_offset=0)
    assert found(await bench.fetch(ask("t"), isolation_level=1)) == [("t", 0, 0, [])], "the marker is not committed yet"
    follower.append_fetched(None, high_watermark=3, log_start_offset=0)
    answer = await bench.fetch(ask("t"), isolation_level=1)
    assert found(answer) == [("t", 0, 0, [0, 1])]
    aborted = answer.responses[0].partitions[0].aborted_transactions or []
    assert [(each.producer_id, each.first_offset) for each in aborted] == [(7, 0)]
    await leader.tasks.close()


async def test_a_marker_wakes_the_readers_of_committed_records(bench: FetchBench) -> None:
    """It is smaller than what they wait for, but it shows records that came before it."""
    await bench.create("t")
    waiting = bench.begin(ask("t"), isolation_level=1, max_wait_ms=60_000, min_bytes=5_000)
    bench.write_in_transaction("t", 7, size=10_000)
    for _ in range(3):
        await bench.idle()
    assert not waiting.done()
    bench.end_transaction("t", 7)
    assert found(await waiting) == [("t", 0, 0, [0, 1])]


async def test_a_marker_wakes_the_readers_of_a_follower(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER), leader=OTHER)
    leader = Bench(bench.directory / "leader")
    leader.directory.mkdir()
    await leader.create("t")
    leader.write_in_transaction("t", 7)
    leader.end_transaction("t", 7)
    first = leader.partition("t").log.read(0, 1, up_to=2).read()
    both = leader.partition("t").log.read(0, MAX, up_to=2).read()
    waiting = bench.begin(ask("t"), isolation_level=1, max_wait_ms=60_000, min_bytes=len(both))
    follower = bench.partition("t")
    follower.append_fetched(first, high_watermark=1, log_start_offset=0)
    follower.append_fetched(both[len(first) :], high_watermark=2, log_start_offset=0)
    assert found(await waiting) == [("t", 0, 0, [0, 1])]
    await leader.tasks.close()


async def test_appends_after_an_open_transaction_wake_no_reader_of_committed_records(
    bench: FetchBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create("t")
    bench.write_in_transaction("t", 7)
    committed = bench.begin(ask("t"), isolation_level=1, max_wait_ms=60_000)
    looks = []
    monkeypatch.setattr(type(committed), "_look_again", lambda fetch: looks.append(fetch))
    bench.write("t")
    bench.write_in_transaction("t", 8)
    await bench.idle()
    assert looks == []
    bench.end_transaction("t", 8)
    await bench.idle()
    assert looks == [], "the transaction of producer 7 is still open"
    bench.end_transaction("t", 7)
    await bench.idle()
    assert looks == [committed]
    committed.cancel()


async def test_losing_the_leadership_wakes_readers_that_wait_for_a_transaction(bench: FetchBench) -> None:
    await bench.create("t")
    bench.write_in_transaction("t", 7)
    waiting = bench.begin(ask("t", current_leader_epoch=0), isolation_level=1, max_wait_ms=60_000)
    bench.alter("t", leader=OTHER)
    (response,) = (await waiting).responses
    assert response.partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_old_clients_get_no_markers(bench: FetchBench, version: int) -> None:
    await bench.create("t")
    bench.write_in_transaction("t", 7)
    bench.end_transaction("t", 7, committed=False)
    bench.write("t")
    assert found(await bench.fetch(ask("t"), version=version)) == [("t", 0, 0, [0, 2])], "they see aborted records"


async def test_a_follower_that_lacks_the_required_epoch_is_told_until_it_shows_it(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 2)
    bench.alter("t", leader=OTHER)
    bench.alter("t", leader=BROKER)
    partition = bench.partition("t")
    follower: dict[str, Any] = {"replica_id": OTHER}
    at_end = ask("t", 2, log_start_offset=0, last_fetched_epoch=0)
    answer = await bench.fetch(at_end, stores_epochs=True, max_wait_ms=60_000, session_epoch=0, **follower)
    assert answer.responses[0].partitions[0].must_store_epoch
    assert partition.high_watermark == 0
    session = {"session_id": answer.session_id, "max_wait_ms": 60_000}
    answer = await bench.fetch(session_epoch=1, **session, **follower)
    assert answer.responses[0].partitions[0].must_store_epoch, "nothing omits the partition"
    stored = ask("t", 2, log_start_offset=0, last_fetched_epoch=0, stored_epoch=partition.leader_epoch)
    waiting = bench.begin(stored, session_epoch=2, **session, **follower)
    assert not waiting.done()
    assert partition.high_watermark == 2
    bench.write("t", 1)
    assert found(await waiting) == [("t", 0, 0, [2])]


async def test_a_follower_behind_the_log_end_gets_records_and_no_epoch(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 2)
    bench.alter("t", leader=OTHER)
    bench.alter("t", leader=BROKER)
    asked = ask("t", 0, log_start_offset=0)
    (data,) = (await bench.fetch(asked, replica_id=OTHER, stores_epochs=True)).responses[0].partitions
    assert (offsets(data), data.must_store_epoch) == ([0, 1], False)
    assert bench.partition("t").followers.progress[OTHER].counted_end == -1


async def test_a_follower_of_an_older_version_counts_without_the_epoch(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 2)
    bench.alter("t", leader=OTHER)
    bench.alter("t", leader=BROKER)
    asked = ask("t", 2, log_start_offset=0, last_fetched_epoch=0)
    (data,) = (await bench.fetch(asked, replica_id=OTHER)).responses[0].partitions
    assert not data.must_store_epoch
    assert bench.partition("t").high_watermark == 2
