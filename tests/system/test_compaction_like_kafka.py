"""Parley's compaction and Apache Kafka's keep the same records of the same writes, and each reads what the other wrote.

Both brokers get the same batches in the same order, and compact nothing until all of them are written. The last record
of each phase begins a segment, so both compact up to the same offset.

Parley keeps more batches without records (docs/storage.md, "What stays longer"), and therefore more markers: a marker
stays until no batch of its transaction is left. Everything else is the same.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import BatchHeader, headers
from parley.protocol.records.compression import Compression
from parley.protocol.records.control_batch import ControlType, read_marker
from parley.storage.checkpoints import INT64_MAX, OffsetCheckpoint
from parley.storage.producer_snapshots import read_snapshot
from tests.support.kafka import Kafka4
from tests.support.kafka_tools import output_of_tool
from tests.system.clusters import POLL_S
from tests.system.conftest import watched
from tests.system.running import BrokerProcess

pytestmark = [pytest.mark.soak, pytest.mark.slow]

WAIT_SECONDS = 120
SEGMENT_BYTES = 1 << 20
VALUE_BYTES = 7000
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.retention.ms": "-1",
    "log.message.timestamp.after.max.ms": str(INT64_MAX),
    "transaction.state.log.num.partitions": "1",
}
CHECKPOINT = "cleaner-offset-checkpoint"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP = 1_790_000_000_000
KEYS = 40
HOUR_MS = "3600000"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
COMPLAINTS = re.compile(r"mismatch|isvalid: false|is followed by|corrupt|exception|invalid|out of order|error", re.I)

EXPECTED = (
    # A compacted log has gaps, and the tool takes the first offset of each segment for one after -1.
    re.compile(r"Non-consecutive offsets in \S+\n(\s+-?\d+ is followed by \d+\n)+"),
    # An index has the largest timestamp of a batch that is empty now, which its header keeps.
    re.compile(r"Found timestamp mismatch in \S+\n(\s+Index timestamp: \d+, log timestamp: -1\n)+"),
)

Setting = str | int | float | bool


class Kept(NamedTuple):
    """A record that a compaction kept, and what its batch keeps."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    codec: Compression
    sequence: int
    """That of the batch's first record."""
    is_transactional: bool
    has_horizon: bool


class Marker(NamedTuple):
    """A marker of a transaction that a compaction kept."""

    offset: int
    epoch: int
    kind: ControlType
    has_horizon: bool


class Side:
    """One of the brokers that are compared, and the producers that write to it."""

    def __init__(self, broker: BrokerProcess | Kafka4) -> None:
        self.broker = broker
        self.directory = broker.log_dir if isinstance(broker, Kafka4) else broker.data
        self._client: dict[str, Setting] = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        self._admin = AdminClient(self._client)
        self._producers: dict[str, Producer] = {}
        self._written: Counter[str] = Counter()

    # --- Settings ---

    def create(self, topic: str) -> None:
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": str(SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0",
            "min.compaction.lag.ms": str(INT64_MAX),
        }
        self._admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(WAIT_SECONDS)

    def configure(self, topic: str, **config: str) -> None:
        """Change settings of a topic, and wait until the broker has them; underscores stand for dots."""
        wanted = {key.replace("_", "."): value for key, value in config.items()}
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in wanted.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(WAIT_SECONDS)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found: dict[str, ConfigEntry] = {}
        while {key: entry.value for key, entry in found.items() if key in wanted} != wanted:
            found = self._admin.describe_configs([resource])[resource].result(WAIT_SECONDS)

    # --- Writing ---

    def producer(self, name: str, **config: Setting) -> Producer:
        """Return the producer of this name, which sends a batch when it is flushed."""
        if name not in self._producers:
            settings = {**{key.replace("_", "."): value for key, value in config.items()}, **self._client}
            settings |= {"linger.ms": 30_000, "message.max.bytes": 2 << 20}
            self._producers[name] = Producer(settings)
            if "transactional_id" in config:
                self._producers[name].init_transactions(WAIT_SECONDS)
        return self._producers[name]

    def write(self, producer: Producer, topic: str, first: int, count: int = 10) -> None:
        """Write one batch: every fourth record is a tombstone, and every third one has headers."""
        for number in range(first, first + count):
            producer.produce(
                topic,
                key=b"key-%d" % (number * 7 % KEYS),
                value=None if number % 4 == 1 else Random(number).randbytes(VALUE_BYTES),
                timestamp=TIMESTAMP + number,
                headers=[("n", b"%d" % number), ("none", None), ("n", b"")] if number % 3 == 0 else None,
            )
        self._flush(producer, topic, count)

    def end_transaction(self, producer: Producer, topic: str, *, commits: bool) -> None:
        """End a transaction, and wait for its marker."""
        (producer.commit_transaction if commits else producer.abort_transaction)(WAIT_SECONDS)
        self._written[topic] += 1
        consumer = Consumer({**self._client, "group.id": "none"})
        while consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_SECONDS)[1] < self._written[topic]:
            pass
        consumer.close()

    def begin_segment(self, topic: str) -> None:
        """Write two records of which no segment holds both."""
        producer = self.producer("filler", enable_idempotence=False)
        for key in (b"filler-1", b"filler-2"):
            producer.produce(topic, key=key, value=bytes(SEGMENT_BYTES - 300), timestamp=TIMESTAMP)
            self._flush(producer, topic, 1)

    def _flush(self, producer: Producer, topic: str, count: int) -> None:
        assert producer.flush(WAIT_SECONDS) == 0
        self._written[topic] += count

    # --- What is in the files ---

    def segments(self, topic: str) -> list[Path]:
        return sorted((self.directory / f"{topic}-0").glob("*.log"))

    def checkpoint(self) -> dict[str, int]:
        """Up to which offset each topic is clean."""
        return {topic: offset for (topic, _), offset in OffsetCheckpoint(self.directory / CHECKPOINT).read().items()}

    def wait_until_compacted(self, topic: str) -> None:
        """Wait until the log is clean up to its active segment."""
        active, deadline = int(self.segments(topic)[-1].stem), time.monotonic() + WAIT_SECONDS
        while self.checkpoint().get(topic) != active:
            assert time.monotonic() < deadline, f"{topic} is clean up to {self.checkpoint()}, not {active}"
            time.sleep(POLL_S)

    def batches(self, topic: str) -> Iterator[tuple[BatchHeader, bytes]]:
        for path in self.segments(topic):
            data = path.read_bytes()
            for position, header in headers(data):
                yield header, data[position : position + header.size_bytes]

    def kept(self, topic: str) -> list[Kept]:
        return [
            Kept(
                *(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)),
                *(header.compression, header.base_sequence, header.is_transactional),
                header.delete_horizon_ms is not None,
            )
            for header, data in self.batches(topic)
            if not header.is_control
            for record in records(data)
        ]

    def markers(self, topic: str) -> list[Marker]:
        found = ((header, read_marker(data)) for header, data in self.batches(topic) if header.is_control)
        return [
            Marker(header.base_offset, header.producer_epoch, marker.type, header.delete_horizon_ms is not None)
            for header, marker in found
            if marker is not None
        ]

    def empty(self, topic: str) -> set[tuple[int, int, int]]:
        """Return the offsets and the first sequence number of each batch without records."""
        found = (header for header, _ in self.batches(topic) if not header.record_count)
        return {(header.base_offset, header.last_offset, header.base_sequence) for header in found}

    def with_batches(self, topic: str) -> set[int]:
        """Return the offsets of the markers that follow a batch of their producer's transaction."""
        found, open_now = set(), set()
        for header, _ in self.batches(topic):
            if header.is_control and header.producer_id in open_now:
                found.add(header.base_offset)
                open_now.discard(header.producer_id)
            elif header.is_transactional and not header.is_control:
                open_now.add(header.producer_id)
        return found

    def read(self, topic: str) -> list[tuple[int | None, bytes | None, bytes | None]]:
        """What a consumer of committed records reads."""
        settings = {"group.id": "none", "enable.partition.eof": True, "isolation.level": "read_committed"}
        consumer = Consumer({**self._client, **settings, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[int | None, bytes | None, bytes | None]] = []
        while (message := consumer.poll(WAIT_SECONDS)) is not None:
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                consumer.close()
                return found
            found.append((message.offset(), message.key(), message.value()))
        raise AssertionError("no message")

    # --- Ending ---

    def restart(self) -> None:
        self.broker.stop()
        self.broker.start()

    def forget_producers(self) -> None:
        """End the producers: the log has another one under their ids."""
        self._producers.clear()

    def end(self) -> None:
        self.forget_producers()
        if isinstance(self.broker, Kafka4):
            self.broker.close()
        else:
            self.broker.kill()


def write_plain(side: Side, topic: str, first: int) -> None:
    for codec in CODECS:
        for number in range(8):
            producer = side.producer(f"plain {codec}", compression_type=codec, enable_idempotence=False)
            side.write(producer, topic, first + number * 10)


def write_idempotent(side: Side, topic: str, first: int) -> None:
    for number in range(8):
        for codec in CODECS:
            producer = side.producer(f"idempotent {codec}", compression_type=codec, enable_idempotence=True)
            side.write(producer, topic, first + number * 10)


def write_transactions(side: Side, topic: str, first: int) -> None:
    for number in range(4):
        for place, codec in enumerate(CODECS):
            producer = side.producer(f"t {codec}", compression_type=codec, transactional_id=f"t {codec}")
            producer.begin_transaction()
            for at in range(2):
                side.write(producer, topic, first + (number * 2 + at) * 10)
            side.end_transaction(producer, topic, commits=(place + number) % 3 != 0)


WRITES: dict[str, Callable[[Side, str, int], None]] = {
    "plain": write_plain,
    "idempotent": write_idempotent,
    "transactional": write_transactions,
}


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    """Parley and Kafka, with a topic for each kind of producer."""
    (tmp_path / "kafka").mkdir()
    parley = BrokerProcess(tmp_path / "parley", SETTINGS)
    both = Side(parley), Side(Kafka4(tmp_path / "kafka", SETTINGS))
    try:
        parley.start()
        for side in both:
            for topic in WRITES:
                side.create(topic)
        with watched(parley):
            yield both
    finally:
        for side in both:
            side.end()


def write_and_compact(sides: tuple[Side, Side], phase: int, delete_retention_ms: str) -> None:
    for side in sides:
        for topic, write in WRITES.items():
            side.configure(topic, min_compaction_lag_ms=str(INT64_MAX))
            write(side, topic, phase * 45)
            side.begin_segment(topic)
            side.configure(topic, min_compaction_lag_ms="0", delete_retention_ms=delete_retention_ms)
    for side in sides:
        for topic in WRITES:
            side.wait_until_compacted(topic)


class Comparison:
    """Compares the logs of Parley and Kafka after each compaction."""

    def __init__(self, sides: tuple[Side, Side]) -> None:
        self._mine, self._theirs = sides
        self._late: dict[str, set[int]] = {topic: set() for topic in WRITES}
        """The markers of whose transactions only Parley has kept a batch: Parley removes them later."""

    def check(self) -> None:
        mine, theirs = self._mine, self._theirs
        for topic, late in self._late.items():
            assert mine.kept(topic) == theirs.kept(topic), topic
            assert mine.empty(topic) >= theirs.empty(topic), topic
            late |= mine.with_batches(topic) - theirs.with_batches(topic)
            ours, wanted = mine.markers(topic), theirs.markers(topic)
            assert {marker.offset for marker in ours} >= {marker.offset for marker in wanted}, topic
            assert {marker.offset for marker in set(ours) ^ set(wanted)} <= late, topic


def dump(files: list[Path], *options: str) -> str:
    """What Kafka's tool prints about files. It must find nothing wrong but what it finds wrong in Kafka's own ones."""
    text = output_of_tool(DUMP, "--files", ",".join(map(str, files)), *options, with_errors=True)
    for expected in EXPECTED:
        text = expected.sub("", text)
    complaints = [line[:200] for line in text.splitlines() if COMPLAINTS.search(line)]
    assert not complaints, "\n".join(complaints[:20])
    return text


def check_files(side: Side, topic: str) -> None:
    """Kafka's tool finds nothing wrong with the files of a compacted log, and all that is in them."""
    folder = side.directory / f"{topic}-0"
    text = dump(side.segments(topic), "--deep-iteration", "--print-data-log")
    assert text.count("isvalid: true") == sum(1 for _ in side.batches(topic))
    assert text.count("| offset: ") == len(side.kept(topic)) + len(side.markers(topic))
    suffixes = ("index", "timeindex", "txnindex", "snapshot")
    indexes = {suffix: sorted(folder.glob(f"*.{suffix}")) for suffix in suffixes}
    for suffix in ("index", "timeindex"):
        assert len(indexes[suffix]) == len(side.segments(topic))
        dump(indexes[suffix][:-1], "--verify-index-only")  # that of the active segment is longer than its entries
        text = dump(indexes[suffix], "--index-sanity-check")
        assert text.count("passed sanity check") + text.count(" is empty.") == len(indexes[suffix])
    aborted = dump(indexes["txnindex"]).count("producerId: ") if indexes["txnindex"] else 0
    assert aborted <= sum(marker.kind is ControlType.ABORT for marker in side.markers(topic))
    entries = sum(len(read_snapshot(path)) for path in indexes["snapshot"])
    assert not entries or dump(indexes["snapshot"]).count("producerId: ") == entries


def exchange(sides: tuple[Side, Side]) -> None:
    """Give each broker the other's logs and checkpoint, while both are stopped."""
    for side, other in (sides, sides[::-1]):
        for topic in WRITES:
            folder = side.directory / f"{topic}-0"
            taken = side.directory.parent / f"taken-{topic}"
            shutil.copytree(other.directory / f"{topic}-0", taken)
            shutil.copy(folder / "partition.metadata", taken)  # each cluster has its own topic ids
        shutil.copy(other.directory / CHECKPOINT, side.directory.parent / CHECKPOINT)
    for side in sides:
        for topic in WRITES:
            shutil.rmtree(side.directory / f"{topic}-0")
            (side.directory.parent / f"taken-{topic}").rename(side.directory / f"{topic}-0")
        shutil.move(side.directory.parent / CHECKPOINT, side.directory / CHECKPOINT)
        for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
            (side.directory / name).unlink()


def test_compaction_keeps_what_kafka_keeps(sides: tuple[Side, Side]) -> None:
    comparison = Comparison(sides)
    write_and_compact(sides, 0, HOUR_MS)
    comparison.check()
    write_and_compact(sides, 1, "0")
    comparison.check()
    for topic in WRITES:
        check_files(sides[0], topic)


def test_producers_continue_after_compactions_and_each_broker_takes_over_the_logs_of_the_other(
    sides: tuple[Side, Side],
) -> None:
    comparison = Comparison(sides)
    for phase in range(4):
        write_and_compact(sides, phase, "0")
        comparison.check()
    for side in sides:
        side.restart()
    write_and_compact(sides, 4, "0")  # with the producers from before
    comparison.check()
    for side in sides:
        for topic in WRITES:
            check_files(side, topic)
    kept = [{topic: side.read(topic) for topic in WRITES} for side in sides]
    clean = [side.checkpoint() for side in sides]
    for side in sides:
        side.broker.stop()
    exchange(sides)
    for side, theirs, checkpoint in zip(sides, kept[::-1], clean[::-1], strict=True):
        side.broker.start()
        assert {topic: side.read(topic) for topic in WRITES} == theirs
        side.forget_producers()
        side.configure("plain", min_compaction_lag_ms="0", delete_retention_ms=HOUR_MS)  # a second pass changes nothing
        side.write(side.producer("later", enable_idempotence=True), "plain", 1000)
        side.begin_segment("plain")
        side.wait_until_compacted("plain")
        assert {**side.checkpoint(), "plain": 0} == {**checkpoint, "plain": 0}
    assert sides[0].kept("plain") == sides[1].kept("plain")


@pytest.mark.soak
def test_a_log_whose_broker_of_kafka_was_killed_in_its_first_compaction_is_read_whole(tmp_path: Path) -> None:
    """Kafka has noted neither a recovery point nor how far it has compacted, and the compacted segments end early."""
    (tmp_path / "kafka").mkdir()
    slow = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": str(2 * SEGMENT_BYTES)}
    parley = BrokerProcess(tmp_path / "parley", {**SETTINGS, "broker.id": "1"})
    kafka = Side(Kafka4(tmp_path / "kafka", slow))
    try:
        kafka.create("t")
        written = write_segments_that_end_with_an_overwritten_batch(kafka, "t", 12)
        kafka.configure("t", min_compaction_lag_ms="0")
        deadline = time.monotonic() + WAIT_SECONDS
        while sum(path.stat().st_size < 0.7 * SEGMENT_BYTES for path in kafka.segments("t")) < 4:
            assert time.monotonic() < deadline, "the compaction has not begun"
            time.sleep(POLL_S)
    finally:
        kafka.end()
    assert "t" not in kafka.checkpoint(), "it was killed before the end of the compaction"
    assert kafka.segments("t")[-2].stat().st_size > 0.7 * SEGMENT_BYTES
    shutil.copytree(kafka.directory, parley.data)
    for start in range(3):
        parley.start()
        try:
            side = Side(parley)
            found = side.read("t")
            assert {key: value for _, key, value in found} == dict(written)
            assert all(offset is not None and written[offset] == (key, value) for offset, key, value in found)
            producer = side.producer("later", enable_idempotence=False)
            producer.produce("t", key=b"later", value=b"%d" % start, timestamp=TIMESTAMP)
            assert producer.flush(WAIT_SECONDS) == 0
            written.append((b"later", b"%d" % start))
        finally:
            parley.kill()
    assert "damage" not in parley.log()
    assert "lost its segments" not in parley.log()


def write_segments_that_end_with_an_overwritten_batch(
    side: Side, topic: str, segments: int
) -> list[tuple[bytes, bytes]]:
    """Write segments with a batch of new keys and a batch of the same ones. Returns all records, by offset."""
    producer = side.producer("uncompressed", enable_idempotence=False)
    written = []
    for segment in range(segments):
        for name in (f"new-{segment}", "same"):
            batch = [(b"%s-%d" % (name.encode(), n), Random(n).randbytes(VALUE_BYTES)) for n in range(70)]
            for key, value in batch:
                producer.produce(topic, key=key, value=value, timestamp=TIMESTAMP)
            assert producer.flush(WAIT_SECONDS) == 0
            written += batch
    return written
