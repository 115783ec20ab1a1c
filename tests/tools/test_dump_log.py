"""``parley dump-log`` prints files, and reports every problem in them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parley.protocol.codec import encode_stored
from parley.protocol.messages import stored
from parley.protocol.records.batch import build
from parley.protocol.records.compression import Compression
from parley.protocol.records.record import Record
from parley.storage.checkpoints import RECOVERY_POINTS, OffsetCheckpoint, with_blank_checksum
from parley.storage.producer_snapshots import ProducerEntry, encode_snapshot
from parley.storage.transaction_index import AbortedTransaction, TransactionIndex
from parley.tools.cli.dump_log import dump
from parley.tools.cli.dump_log.output import DumpOptions
from tests.support.proportion import examples
from tests.tools.conftest import Parley

LOG = "00000000000000000000.log"


def batch(first: int, count: int = 3, **facts: Any) -> bytes:
    values = [Record(0, 1000 + first + n, b"k%d" % n, "vé".encode(), (("h", b"x"),)) for n in range(count)]
    return bytes(build(values, base_offset=first, partition_leader_epoch=2, **facts))


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Return a segment with three batches of 3 records, with index entries for the last two."""
    batches = [
        batch(0),
        batch(3, compression=Compression.GZIP, producer_id=7, producer_epoch=1, base_sequence=5),
        batch(6),
    ]
    log = tmp_path / LOG
    log.write_bytes(b"".join(batches))
    at = [len(batches[0]), len(batches[0]) + len(batches[1])]
    log.with_suffix(".index").write_bytes(struct.pack(">iiii", 5, at[0], 8, at[1]) + bytes(80))
    log.with_suffix(".timeindex").write_bytes(struct.pack(">qiqi", 1005, 5, 1008, 8) + bytes(120))
    return log


def test_batches(parley: Parley, segment: Path) -> None:
    typed = parley("dump-log", "--files", str(segment))
    assert typed.code == 0
    assert typed.lines[:2] == [f"Dumping {segment}", "Log starting offset: 0"]
    assert typed.lines[3].startswith(
        "baseOffset: 3 lastOffset: 5 count: 3 baseSequence: 5 lastSequence: 7 producerId: 7 producerEpoch: 1 "
        "partitionLeaderEpoch: 2 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty position: "
    )
    assert "CreateTime: 1005 size: " in typed.lines[3]
    assert "magic: 2 compresscodec: gzip crc: " in typed.lines[3]
    assert len(typed.lines) == 5


def test_records(parley: Parley, segment: Path) -> None:
    deep = parley("dump-log", "--files", str(segment), "--deep-iteration")
    assert deep.lines[7] == "| offset: 3 CreateTime: 1003 keySize: 2 valueSize: 3 sequence: 5 headerKeys: [h]"
    data = parley("dump-log", "--files", str(segment), "--print-data-log")
    assert data.lines[7] == deep.lines[7] + " key: k0 payload: vé"
    bare = parley("dump-log", "--files", str(segment), "--print-data-log", "--skip-record-metadata")
    assert bare.lines[7] == "| key: k0 payload: vé"


def test_decoder_classes(parley: Parley, tmp_path: Path) -> None:
    log = tmp_path / LOG
    log.write_bytes(bytes(build([Record(0, 1, struct.pack(">q", -7), struct.pack(">i", 5), ())])))
    words = ("--files", str(log), "--skip-record-metadata")
    api = "org.apache.kafka.tools.api."
    typed = parley("dump-log", *words, "--key-decoder-class", f"{api}LongDecoder", "--value-decoder-class",
                   f"{api}IntegerDecoder")  # fmt: skip
    assert typed.lines[-1] == "| key: -7 payload: 5"
    text = parley("dump-log", *words, "--value-decoder-class", "--key-decoder-class", "kafka.serializer.LongDecoder")
    assert text.lines[-1] == "| key: -7 payload: \0\0\0\5"
    short = parley("dump-log", *words, "--value-decoder-class", "LongDecoder")
    assert short.lines[-1].endswith("payload: not a number of 8 bytes: 00000005")
    unknown = parley("dump-log", *words, "--key-decoder-class", "my.Own")
    assert (unknown.code, "Unknown decoder class 'my.Own'" in unknown.err) == (1, True)


def test_as_json(parley: Parley, segment: Path) -> None:
    lines = [
        json.loads(line) for line in parley("dump-log", "--files", str(segment), "--print-data-log", "--json").lines
    ]
    assert [one["baseOffset"] for one in lines if "baseOffset" in one] == [0, 3, 6]
    assert [one["record"]["offset"] for one in lines if "record" in one] == list(range(9))
    assert all(one["file"] == str(segment) for one in lines)


def test_part_of_a_log(parley: Parley, segment: Path) -> None:
    typed = parley("dump-log", "--files", str(segment), "--max-bytes", str(len(batch(0)) + 20))
    assert (typed.code, len(typed.lines)) == (0, 3)


def test_indexes(parley: Parley, segment: Path) -> None:
    files = f"{segment.with_suffix('.index')},{segment.with_suffix('.timeindex')}"
    typed = parley("dump-log", "--files", files)
    assert typed.code == 0
    position = len(batch(0))
    assert typed.lines[1] == f"offset: 5 position: {position}"
    assert typed.lines[4:] == ["timestamp: 1005 offset: 5", "timestamp: 1008 offset: 8"]
    assert len(parley("dump-log", "--files", files, "--verify-index-only").lines) == 2
    sane = parley("dump-log", "--files", files, "--index-sanity-check")
    assert (sane.code, sane.lines[1]) == (0, f"{segment.with_suffix('.index')} passed sanity check.")


def overwrite(path: Path, at: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("suffix", "change", "flags", "problem"),
    [
        (".log", lambda path: overwrite(path, 80, b"\xff"), (), "at byte 0: a batch has checksum"),
        (".log", lambda path: path.write_bytes(path.read_bytes()[:-5]), (), "invalid bytes at the end of"),
        (".log", lambda path: overwrite(path, 16, b"\x09"), (), "at byte 0: unknown record format: magic 9"),
        (".log", lambda path: path.write_bytes(batch(5) + batch(2)), (), "offset 2 follows offset 7"),
        (".log", lambda path: path.write_bytes(path.read_bytes() + b"junk"), (), "4 invalid bytes"),
        (".index", lambda path: overwrite(path, 3, b"\x04"), (), "entry 0: Index offset: 4, log offset: 5"),
        (".index", lambda path: overwrite(path, 6, b"\xff\xff"), (), "has no byte 65535"),
        (".index", lambda path: overwrite(path, 0, b"\x10"), ("--index-sanity-check",), "is not above"),
        (".index", lambda path: overwrite(path, 12, b"\x10"), ("--index-sanity-check",), "outside the segment"),
        (
            ".index",
            lambda path: path.write_bytes(b"12345"),
            ("--index-sanity-check",),
            "not a complete entry of 8 bytes",
        ),
        (".timeindex", lambda path: overwrite(path, 7, b"\x01"), (), "Index timestamp: 769, log timestamp: 1005"),
        (".timeindex", lambda path: overwrite(path, 11, b"\x60"), (), "offset 96 is not found"),
        (".timeindex", lambda path: overwrite(path, 17, b"\x01\x01\x01"), (), "entry 1"),
    ],
)
def test_problems_are_reported_with_their_positions(
    parley: Parley, segment: Path, suffix: str, change: Callable[[Path], object], flags: tuple[str, ...], problem: str
) -> None:
    path = segment.with_suffix(suffix)
    change(path)
    typed = parley("dump-log", "--files", str(path), *flags)
    assert typed.code == 1
    assert problem in typed.err
    assert str(path) in typed.err


def test_records_that_contradict_their_batch_are_found_with_deep_iteration(parley: Parley, tmp_path: Path) -> None:
    from parley.protocol.records.crc import seal

    wrong = bytearray(batch(0))
    wrong[57:61] = struct.pack(">i", 2)  # the count
    seal(wrong, 0, len(wrong))
    (tmp_path / LOG).write_bytes(wrong)
    assert parley("dump-log", "--files", str(tmp_path / LOG)).code == 0
    deep = parley("dump-log", "--files", str(tmp_path / LOG), "--deep-iteration")
    assert deep.code == 1
    assert "at byte 0" in deep.err


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(position=st.integers(0, 700), junk=st.binary(min_size=1, max_size=40), deep=st.booleans())
def test_damaged_bytes_never_crash_it(segment: Path, position: int, junk: bytes, deep: bool) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        path = segment.with_suffix(suffix)
        before = path.read_bytes()
        overwrite(path, min(position, len(before)), junk)
        try:
            for _ in dump(path, DumpOptions(deep=deep, print_data=deep)):
                pass
        finally:
            path.write_bytes(before)


def test_control_batches(parley: Parley, tmp_path: Path) -> None:
    marker = Record(0, 5, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 3))
    data = build([marker], producer_id=4, producer_epoch=0, transactional=True, control=True)
    (tmp_path / LOG).write_bytes(data)
    typed = parley("dump-log", "--files", str(tmp_path / LOG), "--deep-iteration")
    assert typed.lines[-1].endswith("headerKeys: [] endTxnMarker: COMMIT coordinatorEpoch: 3")


def test_committed_offsets_and_groups(parley: Parley, tmp_path: Path) -> None:
    member = stored.GroupMetadataValue.MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        session_timeout=9,
        subscription=encode_stored(stored.ConsumerProtocolSubscription(topics=["t"]), 0),
        assignment=b"",
    )
    group = stored.GroupMetadataValue(
        protocol_type="consumer", generation=2, protocol="range", leader="m", members=[member]
    )
    offset = stored.OffsetCommitValue(offset=5, leader_epoch=1, metadata="", commit_timestamp=9)
    records = [
        Record(
            0, 1, encode_stored(stored.OffsetCommitKey(group="g", topic="t", partition=3), 1), encode_stored(offset, 3)
        ),
        Record(0, 1, encode_stored(stored.GroupMetadataKey(group="g"), 2), encode_stored(group, 3)),
        Record(0, 1, encode_stored(stored.GroupMetadataKey(group="g"), 2), None),
        Record(0, 1, b"\x00\x63", b"?"),
    ]
    (tmp_path / LOG).write_bytes(build(records))
    lines = parley("dump-log", "--files", str(tmp_path / LOG), "--offsets-decoder").lines[3:]
    assert (
        'key: {"type":"1","data":{"group":"g","topic":"t","partition":3}} payload: {"version":"3","data":{"offset":5,'
        in lines[0]
    )
    assert '"subscription":{"topics":["t"],"userData":null}' in lines[1]
    assert lines[2].endswith('key: {"type":"2","data":{"group":"g"}} payload: <DELETE>')
    assert "unknown" in lines[3]


def test_offsets_of_a_transaction(parley: Parley, tmp_path: Path) -> None:
    key = encode_stored(stored.OffsetCommitKey(group="g", topic="t", partition=3), 1)
    value = encode_stored(stored.OffsetCommitValue(offset=5, leader_epoch=1, metadata="", commit_timestamp=9), 3)
    offsets = build([Record(0, 1, key, value)], producer_id=7, producer_epoch=2, transactional=True)
    marker = build(
        [Record(1, 5, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 3))],
        base_offset=1,
        producer_id=7,
        producer_epoch=2,
        transactional=True,
        control=True,
    )
    (tmp_path / LOG).write_bytes(offsets + marker)
    lines = parley("dump-log", "--files", str(tmp_path / LOG), "--offsets-decoder").lines[2:]
    assert "producerId: 7 producerEpoch: 2 partitionLeaderEpoch: -1 isTransactional: true isControl: false" in lines[0]
    assert '"topic":"t","partition":3}} payload: {"version":"3","data":{"offset":5,' in lines[1]
    assert lines[3].endswith("endTxnMarker: COMMIT coordinatorEpoch: 3"), "a marker is not a record of a group"


def test_snapshots_of_producers(parley: Parley, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000009.snapshot"
    path.write_bytes(
        encode_snapshot([ProducerEntry(4, 1, 9, 8, 2, 77, -1, -1), ProducerEntry(5, 0, -1, -1, 0, 88, 3, 6)])
    )
    typed = parley("dump-log", "--files", str(path))
    assert typed.lines[1] == (
        "producerId: 4 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty "
        "lastTimestamp: 77 firstSequence: 7 lastSequence: 9 lastOffset: 8 offsetDelta: 2 timestamp: 77"
    )
    assert typed.lines[2].endswith("currentTxnFirstOffset: OptionalLong[6] lastTimestamp: 88")
    overwrite(path, 12, b"\xff")
    broken = parley("dump-log", "--files", str(path))
    assert (broken.code, "checksum" in broken.err) == (1, True)


def test_aborted_transactions(parley: Parley, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.txnindex"
    index = TransactionIndex(path)
    index.append(AbortedTransaction(4, 2, 6, 7))
    index.close()
    assert parley("dump-log", "--files", str(path)).lines[1] == (
        "version: 0 producerId: 4 firstOffset: 2 lastOffset: 6 lastStableOffset: 7"
    )
    path.write_bytes(path.read_bytes() + b"x")
    assert parley("dump-log", "--files", str(path)).code == 1


def test_checkpoints(parley: Parley, tmp_path: Path) -> None:
    OffsetCheckpoint(tmp_path / RECOVERY_POINTS).write({("t", 0): 5})
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n3 40\n")
    typed = parley("dump-log", "--files", f"{tmp_path / RECOVERY_POINTS},{tmp_path / 'leader-epoch-checkpoint'}")
    assert typed.lines[1] == "topic: t partition: 0 offset: 5"
    assert typed.lines[2].startswith("crc: ")
    assert typed.lines[2].endswith(" isvalid: true")
    assert typed.lines[4] == "epoch: 3 startOffset: 40"
    (tmp_path / RECOVERY_POINTS).write_text((tmp_path / RECOVERY_POINTS).read_text().replace("t 0 5", "t 0 6"))
    assert parley("dump-log", "--files", str(tmp_path / RECOVERY_POINTS)).lines[2].endswith(" isvalid: false")
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n2\n3 40\n")
    assert parley("dump-log", "--files", str(tmp_path / "leader-epoch-checkpoint")).code == 1
    (tmp_path / "leader-epoch-checkpoint").write_bytes(with_blank_checksum(b"0\n1\n3 40\n").replace(b"40", b"41"))
    altered = parley("dump-log", "--files", str(tmp_path / "leader-epoch-checkpoint"))
    assert (altered.code, "its checksum is wrong" in altered.err) == (1, True)


def test_other_files(parley: Parley, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert "Ignoring unknown file" in parley("dump-log", "--files", str(tmp_path / "notes.txt")).out
    for name in ("none.log", LOG):
        typed = parley("dump-log", "--files", str(tmp_path / name))
        assert typed.code == 1
        assert typed.err.startswith("Error: ")


def test_old_messages(parley: Parley, tmp_path: Path) -> None:
    import zlib

    body = struct.pack(">bbq", 1, 0, 500) + struct.pack(">i", 1) + b"k" + struct.pack(">i", 1) + b"v"
    message = struct.pack(">qiI", 4, len(body) + 4, zlib.crc32(body)) + body
    (tmp_path / LOG).write_bytes(message)
    lines = parley("dump-log", "--files", str(tmp_path / LOG), "--print-data-log").lines
    assert lines[2].startswith("offset: 4 position: 0 CreateTime: 500 size: ")
    assert lines[3] == "| offset: 4 CreateTime: 500 keySize: 1 valueSize: 1 key: k payload: v"
