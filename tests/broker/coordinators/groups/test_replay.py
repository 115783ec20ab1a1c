"""Loading groups from arbitrary records: invalid records are skipped, and groups work with the rest."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.broker.coordinators.groups.group import CommittedOffset, Group, GroupMember, GroupState
from parley.broker.coordinators.groups.group_records import GroupReplay, KeyValue, group_record, offset_record
from parley.broker.coordinators.groups.offset_expiry import expired_offsets, subscribes_to
from parley.broker.coordinators.groups.offsets_topic import OffsetsTopic
from parley.broker.metadata.topic_names import OFFSETS_TOPIC
from parley.protocol.codec import encode_stored
from parley.protocol.messages.stored import GroupMetadataKey, GroupMetadataValue
from parley.protocol.records.batch import build
from parley.protocol.records.compression import Compression
from parley.protocol.records.crc import seal
from parley.protocol.records.record import Record
from parley.storage.log import Log, Origin
from parley.storage.log_config import LogConfig
from tests.broker.coordinators.groups.test_loading import Reader, coordinator
from tests.broker.coordinators.groups.test_membership import Bench
from tests.support.proportion import examples
from tests.support.virtual_time import run

GENERATION_MAX = (1 << 31) - 1
LONGEST_SESSION_MS = 600_000
small = st.integers(-(1 << 31), GENERATION_MAX)
texts = st.text(max_size=5)
members = st.builds(
    GroupMetadataValue.MemberMetadata,
    member_id=texts,
    group_instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout=small,
    session_timeout=st.integers(-(1 << 31), LONGEST_SESSION_MS),
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=5),
)
generations = st.builds(
    GroupMetadataValue,
    protocol_type=st.just("consumer") | texts,
    generation=small | st.integers(0, 3),
    protocol=st.none() | texts,
    leader=st.none() | texts,
    current_state_timestamp=st.integers(-(1 << 63), (1 << 63) - 1),
    members=st.lists(members, max_size=4),
)


@st.composite
def records(draw: st.DrawFn) -> KeyValue:
    """A record of a group or an offset, whole, cut, or with a byte changed, or arbitrary bytes."""
    if draw(st.booleans()):
        key = encode_stored(GroupMetadataKey(group=draw(texts)), 2)
        value = encode_stored(draw(generations), 3)
    else:
        committed = CommittedOffset(draw(small), draw(small), draw(texts), draw(small), draw(small))
        key, found = offset_record(draw(texts), (draw(texts), draw(small)), committed)
        value = found or b""
    parts = [bytearray(key), bytearray(value)]
    for part in parts:
        match draw(st.sampled_from(["whole", "whole", "cut", "changed", "bytes"])):
            case "cut":
                del part[draw(st.integers(0, len(part) - 1)) :]
            case "changed":
                part[draw(st.integers(0, len(part) - 1))] ^= 1 << draw(st.integers(0, 7))
            case "bytes":
                part[:] = draw(st.binary(max_size=30))
    return bytes(parts[0]), draw(st.sampled_from([bytes(parts[1]), None]))


GOOD = Group("good", 0, offsets={("t", 0): CommittedOffset(5, -1, "", 0)})


@given(st.lists(records(), max_size=10))
@settings(max_examples=examples(300), deadline=None)
def test_whatever_the_records_are_the_valid_ones_count_and_groups_work(written: list[KeyValue]) -> None:
    replay = GroupReplay(0)
    for key, value in written:
        replay.apply(key, value)
    replay.apply(*offset_record("good", ("t", 0), GOOD.offsets["t", 0]))
    groups = {group.group_id: group for group in replay.groups()}
    assert groups["good"].offsets["t", 0].offset == 5
    assert bool(replay.skipped) == bool(replay.why_skipped)

    async def live() -> None:
        for group in groups.values():
            group_record(group)
            expired_offsets(group, 1, 1)
            subscribes_to(group, "t")
            await outlive(group)

    run(live())


async def outlive(group: Group) -> None:
    """Let the sessions of the members found in the log expire, and let a new member join."""
    bench = Bench()
    bench.group = group
    bench.membership.start_sessions(group)
    await asyncio.sleep(2 * LONGEST_SESSION_MS / 1000)
    assert not group.members
    if group.state is GroupState.EMPTY:
        joined = await bench.join()
        assert bench.group.leader_id == joined.member_id
        assert (await bench.sync(joined, {joined.member_id: b"all"})).assignment == b"all"


def test_a_generation_without_a_successor_is_skipped() -> None:
    for generation in (-1, GENERATION_MAX):
        group = Group("g", 0, generation=generation)
        replay = GroupReplay(0)
        replay.apply(*group_record(group))
        assert (replay.groups(), replay.skipped) == ([], 1)


def _nonsense() -> bytearray:
    """Return a batch with a valid checksum whose records are not records."""
    batch = build([Record(0, 0, b"k", b"v", ())] * 3)
    batch[-8:] = b"\xff" * 8
    seal(batch, 0, len(batch))
    return batch


async def replayed(log: Log) -> GroupReplay:
    """What the log of an offsets topic's partition holds, as its coordinator reads it."""

    async def opened() -> None:
        pass

    partitions: Any = SimpleNamespace(opened=opened, find=lambda topic, index: SimpleNamespace(log=log))
    unused: Any = None
    replay = GroupReplay(0)
    await OffsetsTopic(partitions, unused, unused, lambda: 0).replay(replay)
    return replay


async def test_an_unreadable_batch_does_not_affect_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.broker.coordinators.groups.offsets_topic.BATCH_BYTES_MAX", 100_000)
    bomb = build([Record(0, 0, b"k", bytes(200_000), ())], compression=Compression.GZIP)
    good = [group_record(Group(f"g{i}", 0, generation=1)) for i in range(2)]
    log = Log.open(tmp_path, OFFSETS_TOPIC, 0, LogConfig(), now_ms=lambda: 0, random=random.Random(1))
    for batch in (build([(0, 0, *good[0], ())]), _nonsense(), bomb, build([(0, 0, *good[1], ())])):
        log.append_as_leader(batch, leader_epoch=0, now_ms=0, origin=Origin.COORDINATOR)
    replay = await replayed(log)
    assert sorted(group.group_id for group in replay.groups()) == ["g0", "g1"]
    assert replay.skipped == 2
    log.close()


async def test_batches_larger_than_a_read_are_loaded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.broker.coordinators.groups.offsets_topic.READ_BYTES", 10)
    log = Log.open(tmp_path, OFFSETS_TOPIC, 0, LogConfig(), now_ms=lambda: 0, random=random.Random(1))
    for number in range(3):
        batch = build([(0, 0, *group_record(Group(f"g{number}", 0, generation=1)), ())])
        log.append_as_leader(batch, leader_epoch=0, now_ms=0, origin=Origin.COORDINATOR)
    replay = await replayed(log)
    assert sorted(group.group_id for group in replay.groups()) == ["g0", "g1", "g2"]
    log.close()


async def test_groups_of_megabytes_are_loaded_as_kafka_loads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In reads of 5 MiB, which is the default of Kafka's ``offsets.load.buffer.size``."""
    log = Log.open(tmp_path, OFFSETS_TOPIC, 0, LogConfig(), now_ms=lambda: 0, random=random.Random(1))
    group = Group("large", 0, GroupState.STABLE, generation=1, protocol_type="consumer", protocol="range")
    group.add(GroupMember("m", None, "c", "h", 1, 1, (("range", bytes(1 << 20)),)))
    batch = build([(0, 0, *group_record(group), ())], compression=Compression.GZIP)
    log.append_as_leader(batch, leader_epoch=0, now_ms=0, origin=Origin.COORDINATOR)
    sizes: list[int] = []
    read = Log.read

    def noted(log: Log, offset: int, max_bytes: int, **how: Any) -> Any:
        sizes.append(max_bytes)
        return read(log, offset, max_bytes, **how)

    monkeypatch.setattr(Log, "read", noted)
    replay = await replayed(log)
    assert [group.group_id for group in replay.groups()] == ["large"]
    assert sizes == [5_242_880]
    log.close()


def test_skipped_records_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Poisoned(Reader):
        async def replay(self, replay: GroupReplay) -> None:
            for _ in range(3):
                replay.apply(b"\0\x02", b"poison")
            await super().replay(replay)

    async def scenario() -> None:
        groups = coordinator(Poisoned())
        groups.on_elected(0, leader_epoch=1)
        await groups.until_loaded(timeout_s=1)
        assert [group.group_id for group in groups.all()] == ["g"]

    with caplog.at_level(logging.WARNING):
        run(scenario())
    (said,) = caplog.records
    assert (said.__dict__["partition"], said.__dict__["records"]) == (0, 3)
