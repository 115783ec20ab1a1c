"""Apache Kafka as the reference for our files: Parley opens Kafka's directories, and Kafka's tools and broker read
ours.

Kafka 3.9 with ZooKeeper writes one directory with every kind of file that it can store, once per machine
(``tests.support.kafka_written``); each test works on a copy.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from parley.broker.runtime.tasks import TaskSet
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import BatchHeader, headers
from parley.protocol.records.compression import Compression
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.protocol.records.record import Record
from parley.protocol.sentinels import NO_TIMESTAMP
from parley.protocol.uuids import UUID
from parley.storage.log import Log, Origin
from parley.storage.log_config import LogConfig
from parley.storage.log_maintenance import MaintenanceIntervals
from parley.storage.log_manager import LogManager
from parley.storage.producer_snapshots import encode_snapshot, read_snapshot
from parley.storage.transaction_index import AbortedTransaction
from tests.support.kafka import KAFKA_3, KAFKA_4, kafka_39_zk
from tests.support.kafka_data import TIMESTAMP, Consumed, cluster_id, consume, create, produce, producer
from tests.support.kafka_tools import output_of_tool
from tests.support.kafka_written import Written, everything_written, topics_in

pytestmark = [pytest.mark.system, pytest.mark.slow]

DUMP = {KAFKA_3: "kafka.tools.DumpLogSegments", KAFKA_4: "org.apache.kafka.tools.DumpLogSegments"}
COMPLAINTS = re.compile(
    r"mismatch|isvalid: false|non-?consecutive|is followed by|corrupt|exception|invalid bytes|out of order|error",
    re.I,
)
SMALL = LogConfig(segment_bytes=4000, index_interval_bytes=500, segment_index_bytes=1 << 12)


# Kafka's files, read by Parley


@pytest.fixture(params=["stopped", "killed"])
def written(request: pytest.FixtureRequest) -> Written:
    """Everything that one Kafka wrote, as a crash would have left it or after a clean shutdown."""
    return everything_written()[request.param]


@asynccontextmanager
async def opened(*log_dirs: Path, cluster: str | None = None) -> AsyncIterator[LogManager]:
    tasks = TaskSet()
    manager = LogManager(
        log_dirs,
        default_config=SMALL,
        now_ms=lambda: TIMESTAMP,
        random=Random(1),
        start_task=tasks.start,
        intervals=MaintenanceIntervals(),
    )
    await manager.open(cluster or cluster_id(log_dirs[0]), 1)
    try:
        yield manager
    finally:
        await manager.close()
        await tasks.close()


def read_batches(log: Log, up_to: int) -> Iterator[tuple[BatchHeader, bytes]]:
    offset = log.log_start_offset
    while offset < up_to:
        data = bytes(log.read(offset, 1 << 20, up_to=up_to).read())
        if not data:
            return
        for position, header in headers(data):
            yield header, data[position : position + header.size_bytes]
            offset = header.next_offset


def read_log(log: Log) -> list[Consumed]:
    """Return the records of a log as a read_uncommitted consumer sees them."""
    return [
        record
        for header, data in read_batches(log, log.log_end_offset)
        if not header.is_control
        for record in as_consumed(data, log.log_start_offset)
    ]


def read_committed(log: Log) -> list[Consumed]:
    """Return the records as a read_committed consumer sees them, filtered as KIP-98 prescribes."""
    up_to = log.last_stable_offset
    waiting = sorted(log.aborted_transactions(log.log_start_offset, up_to), key=lambda aborted: aborted.first_offset)
    aborted_now: set[int] = set()
    found: list[Consumed] = []
    for header, data in read_batches(log, up_to):
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborted_now.add(waiting.pop(0).producer_id)
        if header.is_control:
            aborted_now.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted_now):
            found += as_consumed(data, log.log_start_offset)
    return found


def as_consumed(data: bytes, log_start: int) -> list[Consumed]:
    return [
        Consumed(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for record in records(data)
        if record.offset >= log_start
    ]


async def test_every_record_that_kafka_wrote_is_read(written: Written, tmp_path: Path) -> None:
    async with opened(written.copied(tmp_path)) as manager:
        assert len(manager.online()) == 1
        assert {log.topic for log in manager.logs} == set(written.topics)
        for log in manager.logs:
            log.high_watermark = log.log_end_offset
            assert read_log(log) == written.topics[log.topic], log
            assert read_committed(log) == written.committed[log.topic], log
    assert len(written.topics["codecs"]) == 1000
    assert len(written.topics["transactions"]) > len(written.committed["transactions"]) > 0
    assert written.topics["trimmed"][0].offset == 333


async def test_kafkas_formats_were_really_written(written: Written, tmp_path: Path) -> None:
    """This ensures that the test above does not pass merely because there is nothing to read."""
    async with opened(written.copied(tmp_path)) as manager:
        magics, codecs = {}, {}
        for log in manager.logs:
            found = [header for header, _ in read_batches(log, log.log_end_offset)]
            magics[log.topic] = sorted({header.magic for header in found})
            codecs[log.topic] = {header.compression for header in found}
        assert magics["magic-0"] == [0]
        assert magics["magic-1"] == [1]
        assert magics["upgraded"] == [0, 1, 2]
        assert magics["codecs"] == [2]
        assert codecs["codecs"] == set(Compression)
        assert codecs["magic-0"] == codecs["magic-1"] == set(Compression) - {Compression.ZSTD}
        assert all(consumed.timestamp == NO_TIMESTAMP for consumed in written.topics["magic-0"])
        compacted = [consumed.offset for consumed in written.topics["compacted"]]
        assert len(compacted) < compacted[-1] - compacted[0]
        segments = {log.topic: len(log.segments) for log in manager.logs}
        assert all(segments[topic] > 2 for topic in ("codecs", "magic-0", "magic-1", "upgraded", "transactions"))


async def test_kafkas_ids_and_states_are_understood(written: Written, tmp_path: Path) -> None:
    log_dir = written.copied(tmp_path)
    snapshots = list(log_dir.glob("*/*.snapshot"))
    assert any(read_snapshot(path) for path in snapshots)
    for path in snapshots:
        assert encode_snapshot(read_snapshot(path)) == path.read_bytes()
    async with opened(log_dir) as manager:
        for log in manager.logs:
            text = (log.directory / "partition.metadata").read_text()
            assert isinstance(log.topic_id, UUID)
            assert log.leader_epochs.latest_epoch == 0 or not log.log_end_offset or "magic" in log.topic, text
        idempotent = manager.get("idempotent", 0)
        transactions = manager.get("transactions", 0)
        assert idempotent is not None
        assert transactions is not None
        assert sorted(entry.last_sequence for entry in idempotent.producers.entries) == [99, 99, 99]
        began = [entry.transaction_first_offset for entry in transactions.producers.entries]
        assert max(began) == transactions.last_stable_offset or transactions.high_watermark < max(began)
        assert sorted(began)[0] == -1


# Parley's files, read by Kafka's tools


def fill(log: Log, *, producer_id: int, rounds: int) -> list[AbortedTransaction]:
    """Append batches of every codec, idempotent batches and overlapping transactions, over many segments."""
    aborted = []
    for number in range(rounds):
        for codec in Compression:
            append(log, number * 10 + codec, compression=codec)
        append(log, number, producer_id=producer_id, producer_epoch=0, base_sequence=number * 5)
        first = append(log, number, producer_id=producer_id + 1, producer_epoch=0, base_sequence=number * 5, tx=True)
        append(log, number, producer_id=producer_id + 2, producer_epoch=0, base_sequence=number * 5, tx=True)
        kind = ControlType.ABORT if number % 2 else ControlType.COMMIT
        last = end(log, producer_id + 1, kind)
        end(log, producer_id + 2, ControlType.COMMIT)
        if kind is ControlType.ABORT:
            aborted.append(AbortedTransaction(producer_id + 1, first, last, first + 5))
    append(log, 0, producer_id=producer_id + 1, producer_epoch=0, base_sequence=rounds * 5, tx=True)
    return aborted


def append(log: Log, number: int, *, tx: bool = False, **fields: int) -> int:
    value, more = b"%d " % number * 10, (("h", b"v"), ("n", None))
    content = [Record(at, TIMESTAMP + number * 5 + at, b"key-%d" % at, value, more) for at in range(5)]
    batch = build(content, transactional=tx, **fields)  # type: ignore[arg-type]
    info = log.append_as_leader(batch, leader_epoch=3, now_ms=TIMESTAMP)
    log.high_watermark = log.log_end_offset
    return info.first_offset


def end(log: Log, producer_id: int, kind: ControlType) -> int:
    batch = build_marker(ControlMarker(kind, 1), producer_id=producer_id, producer_epoch=0, timestamp=TIMESTAMP)
    info = log.append_as_leader(batch, leader_epoch=3, now_ms=TIMESTAMP, origin=Origin.COORDINATOR)
    log.high_watermark = log.log_end_offset
    return info.first_offset


def dump(version: str, files: list[Path], *options: str) -> str:
    named = ",".join(map(str, sorted(files)))
    # Mismatches are printed to standard error; the exit code is 0 nevertheless.
    text = output_of_tool(DUMP[version], "--files", named, *options, version=version, with_errors=True)
    # Kafka 4's tool reports a gap after -1 at the first offset of every segment except the first.
    text = re.sub(r"Non-consecutive offsets in \S+\n\s+-1 is followed by \d+\n", "", text)
    complaints = [line for line in text.splitlines() if COMPLAINTS.search(line)]
    assert not complaints, "\n".join(complaints[:20])
    return text


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[AbortedTransaction]]:
    """Return a directory that Parley closed cleanly: its only partition, and the transactions aborted in it."""
    return asyncio.run(write_ours(tmp_path_factory.mktemp("ours")))


async def write_ours(log_dir: Path) -> tuple[Path, list[AbortedTransaction]]:
    async with opened(log_dir, cluster="cluster") as manager:
        log = await manager.get_or_create("our.topic", 0, topic_id=UUID(int=1 << 80))
        aborted = fill(log, producer_id=1000, rounds=12)
        assert len(log.segments) > 5
    return log_dir / "our.topic-0", aborted


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_kafka_dumps_our_segments(ours: tuple[Path, list[AbortedTransaction]], version: str) -> None:
    partition, _ = ours
    files = list(partition.glob("*.log"))
    text = dump(version, files, "--deep-iteration", "--print-data-log")
    assert text.count("isvalid: true") == text.count("baseOffset: ") == 12 * 10 + 1
    assert text.count("endTxnMarker: ") == 24
    assert text.count("endTxnMarker: ABORT") == 6
    assert text.count("| offset: ") == 12 * (5 * 8 + 2) + 5
    assert text.count("headerKeys: [h,n]") == 12 * 5 * 8 + 5


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_kafka_checks_our_indexes(ours: tuple[Path, list[AbortedTransaction]], version: str) -> None:
    partition, _ = ours
    indexes = [*partition.glob("*.index"), *partition.glob("*.timeindex")]
    assert len(indexes) == 2 * len(list(partition.glob("*.log")))
    dump(version, indexes, "--verify-index-only")
    text = dump(version, list(partition.glob("*.index")), "--index-sanity-check")
    assert text.count("passed sanity check") == len(indexes) // 2
    text = dump(version, list(partition.glob("*.timeindex")), "--index-sanity-check")
    assert text.count("passed sanity check") == len(indexes) // 2


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_kafka_reads_our_aborted_transactions(ours: tuple[Path, list[AbortedTransaction]], version: str) -> None:
    partition, aborted = ours
    text = dump(version, list(partition.glob("*.txnindex")))
    pattern = re.compile(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)")
    assert [AbortedTransaction(*map(int, found)) for found in pattern.findall(text)] == aborted


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_kafka_reads_our_snapshots(ours: tuple[Path, list[AbortedTransaction]], version: str) -> None:
    partition, _ = ours
    newest = max(partition.glob("*.snapshot"))
    text = dump(version, [newest])
    pattern = r"producerId: (\d+) .*coordinatorEpoch: (-?\d+) currentTxnFirstOffset: \D*?(-?\d+|None|empty)"
    pattern += r".* lastTimestamp: (\d+)"
    seen = {int(found[0]): found[1:] for found in re.findall(pattern, text)}
    expected = {entry.producer_id: entry for entry in read_snapshot(newest)}
    assert sorted(seen) == sorted(expected) == [1000, 1001, 1002]
    for producer_id, entry in expected.items():
        assert (seen[producer_id][0], seen[producer_id][2]) == (str(entry.coordinator_epoch), str(entry.timestamp))
    assert seen[1001][1] == str(expected[1001].transaction_first_offset)
    assert "firstSequence: 60" in text
    assert "lastSequence: 64" in text


# There and back


@pytest.mark.timeout(600)
async def test_kafka_continues_where_we_stopped(tmp_path: Path) -> None:
    """Kafka creates a cluster, Parley writes into its directories, and Kafka reads both and continues.

    Parley closed one directory cleanly. The other looks as if Parley had crashed.
    """
    closed, crashed = tmp_path / "closed", tmp_path / "crashed"
    with kafka_39_zk(tmp_path, {"log.dirs": f"{closed},{crashed}"}) as kafka:
        create(kafka, "first")  # Kafka gives each topic the directory with the fewest
        create(kafka, "second")
        kafka.stop()
        assert sorted(map(topics_in, (closed, crashed))) == [["first"], ["second"]]
        expected, committed = {}, {}
        async with opened(closed, crashed) as manager:
            for topic in ("first", "second"):
                log = manager.get(topic, 0)
                assert log is not None
                fill(log, producer_id=1000, rounds=6)
                append(log, 1, producer_id=2000, producer_epoch=0, base_sequence=0)
                end(log, 1001, ControlType.COMMIT)
                expected[topic], committed[topic] = read_log(log), read_committed(log)
        (crashed / ".kafka_cleanshutdown").unlink()
        kafka.start()
        for topic in expected:
            assert consume(kafka, topic) == expected[topic]
            assert consume(kafka, topic, committed=True) == committed[topic]
            assert len(expected[topic]) > len(committed[topic])
            produce(producer(kafka, enable_idempotence=True), topic, 50)
            expected[topic], committed[topic] = consume(kafka, topic), consume(kafka, topic, committed=True)
        kafka.stop()
        async with opened(closed, crashed) as manager:
            for topic in expected:
                log = manager.get(topic, 0)
                assert log is not None
                assert read_log(log) == expected[topic]
                assert read_committed(log) == committed[topic]
