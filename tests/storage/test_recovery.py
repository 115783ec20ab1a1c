"""Opening a log after a clean shutdown, after a crash, and with missing, torn, foreign or leftover files."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import headers
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.protocol.records.record import Record
from parley.storage import segment_appends
from parley.storage.damage.appended_epochs import APPENDED_EPOCHS
from parley.storage.leader_epoch_cache import CHECKPOINT, LeaderEpochCache
from parley.storage.log import Log, Origin
from parley.storage.log_config import LogConfig
from parley.storage.segment import Segment
from tests.storage.compaction.compactions import compacted
from tests.storage.logs import NOW, SMALL, append, apply_retention, batch_of, check, fill, open_log, reopened, values_of

INDEXES = (".index", ".timeindex")
LARGE = replace(SMALL, segment_bytes=1 << 20, segment_index_bytes=1 << 16)


def index_contents(log: Log) -> list[tuple[object, object]]:
    """Return the entries of all indexes of a log."""
    return [(segment.offset_index.entries(), segment.time_index.entries()) for segment in log.segments]


def lose_end_of(segment: Segment, lost: str) -> int:
    """Remove "a batch" from the end of a segment, or "everything", or delete "the file". Returns the
    first lost offset."""
    path = segment.path_of(".log")
    position, header = list(segment.batches())[-1]
    if lost == "a batch":
        os.truncate(path, position)
        return header.base_offset
    if lost == "everything":
        os.truncate(path, 0)
    else:
        path.unlink()
    return segment.base_offset


def append_transactions(log: Log) -> None:
    """Append 40 transactions of four producers; two thirds of them are aborted."""
    for n in range(40):
        producer, sequence = n % 4, 2 * (n // 4)
        for each in (sequence, sequence + 1):
            append(log, b"v" * 100, producer_id=producer, producer_epoch=0, base_sequence=each, transactional=True)
        kind = ControlType.ABORT if n % 3 else ControlType.COMMIT
        marker = build_marker(ControlMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp=NOW)
        log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR)


def remove_file(path: Path) -> None:
    path.unlink()


def cut_entry(path: Path) -> None:
    """Remove the last entry of a transaction index."""
    os.truncate(path, path.stat().st_size - 34)


def flip_in_entries(path: Path) -> None:
    """Alter the first offset of the first entry of a transaction index, and the producer of the last one."""
    data = bytearray(path.read_bytes())
    data[17] ^= 1
    data[-34 + 9] ^= 8
    path.write_bytes(data)


class TestCleanStop:
    def test_nothing_is_lost_and_nothing_scanned(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        before = index_contents(log)
        log = reopened(log, clean=True)
        assert index_contents(log) == before
        assert (log.recovery_point, log.log_end_offset) == (100, 100)
        assert values_of(log) == dict(enumerate(values))
        assert not caplog.records
        check(log)

    @pytest.mark.parametrize("log_start", [101, 10**9, 2**63 - 1])
    def test_a_log_start_behind_the_log_end_deletes_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, log_start: int
    ) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log = reopened(log, clean=True, log_start_offset=log_start)
        assert values_of(log) == dict(enumerate(values))
        assert "the checkpoint of log start offsets is damaged" in caplog.text

    @pytest.mark.parametrize("kind", INDEXES)
    @pytest.mark.parametrize("number", [0, 1, -1])
    @pytest.mark.parametrize("damage", ["missing", "cut", "zeros", "preallocated"])
    def test_an_index_that_cannot_be_right_is_rebuilt(
        self, tmp_path: Path, kind: str, number: int, damage: str
    ) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.close()
        before = index_contents(log)
        path = log.segments[number].path_of(kind)
        if damage == "missing":
            path.unlink()
        elif damage == "cut":
            os.truncate(path, path.stat().st_size - 1)
        elif damage == "zeros":
            path.write_bytes(bytes(24 * (path.stat().st_size // 24) or 24))
        else:
            os.truncate(path, 1020)
        log = open_log(tmp_path, clean=True, recovery_point=100)
        assert index_contents(log)[:-1] == before[:-1]
        assert values_of(log) == dict(enumerate(values))
        check(log)
        assert log.log_end_offset == 100
        append(log, b"more")
        check(reopened(log, clean=True))

    @pytest.mark.parametrize("tail", [b"\0", bytes(100), b"garbage" * 50])
    def test_bytes_behind_the_last_batch_are_cut(self, tmp_path: Path, tail: bytes) -> None:
        log = open_log(tmp_path)
        values = fill(log, 50)
        log.close()
        with open(log.segments[-1].path_of(".log"), "ab") as file:
            file.write(tail)
        log = open_log(tmp_path, clean=True, recovery_point=50)
        assert values_of(log) == dict(enumerate(values))
        check(log)

    @pytest.mark.parametrize("garbage", [b"", b"garbage"])
    def test_an_altered_offset_in_the_last_header_does_not_move_the_log_end(
        self, tmp_path: Path, garbage: bytes
    ) -> None:
        """The digest written at the shutdown contains the log end. The batch's own checksum is valid, but the digest
        shows the damage."""
        log = open_log(tmp_path)
        values = fill(log, 50)
        log.close()
        path = log.segments[-1].path_of(".log")
        *_, (last, _) = log.segments[-1].batches()
        data = bytearray(path.read_bytes())
        data[last + 5] ^= 1
        path.write_bytes(bytes(data) + garbage)
        log = open_log(tmp_path, clean=True, recovery_point=50)
        assert (log.log_end_offset, ranges(log)) == (50, [(49, 49)])
        assert values_of(log) == dict(enumerate(values[:49]))
        append(log, b"more")
        check(log)

    def test_a_last_segment_that_kafka_has_cut_at_a_batch_is_not_damaged(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        values = fill(log, 50)
        log.close()
        *_, (last, _) = log.segments[-1].batches()
        os.truncate(log.segments[-1].path_of(".log"), last)
        log = open_log(tmp_path, clean=True, recovery_point=49)
        assert not log.damage
        assert values_of(log) == dict(enumerate(values[:49]))
        check(log)

    def test_snapshots_stay_where_segments_begin_and_at_the_end(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        for _ in range(3):
            fill(log, 2)
            log = reopened(log, clean=True)
        log.roll()
        fill(log, 1)
        log = reopened(log, clean=True)
        log.close()
        assert sorted(path.name for path in tmp_path.glob("*.snapshot")) == [
            "00000000000000000006.snapshot",
            "00000000000000000007.snapshot",
        ]

    def test_a_missing_snapshot_is_learned_again(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        for n in range(60):
            append(log, b"v" * 100, producer_id=n % 3, producer_epoch=0, base_sequence=n // 3)
        log.close()
        for path in tmp_path.glob("*.snapshot"):
            path.unlink()
        log = open_log(tmp_path, clean=True, recovery_point=60)
        check(log)
        append(log, b"v", producer_id=0, producer_epoch=0, base_sequence=20)

    def test_an_old_segment_that_is_damaged_takes_no_other_with_it(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.close()
        segment = log.segments[1]
        segment.path_of(".index").unlink()
        data = bytearray(segment.path_of(".log").read_bytes())
        position, header = list(segment.batches())[3]
        data[position + 70] ^= 1
        segment.path_of(".log").write_bytes(data)
        lost = header.base_offset
        log = open_log(tmp_path, clean=True, recovery_point=100)
        assert log.log_end_offset == 100
        assert ranges(log) == [(lost, lost)]
        assert values_of(log) == {n: value for n, value in enumerate(values) if n != lost}
        check(log)


def flip(path: Path, at: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def flip_bits(path: Path, at: int, mask: int) -> None:
    """Flip the bits of a mask in an int32 of a file."""
    data = bytearray(path.read_bytes())
    number = int.from_bytes(data[at : at + 4], "big") ^ mask
    data[at : at + 4] = number.to_bytes(4, "big")
    path.write_bytes(data)


def fail_on_disk(*args: object) -> None:
    raise OSError(errno.EIO, "no such sector")


def ranges(log: Log) -> list[tuple[int, int]]:
    """Return the damaged ranges of a log: the first and last offset of each."""
    return [(each.first_offset, each.last_offset) for each in log.damage]


class TestDamage:
    """The process died but the machine kept running: any inconsistency is damage, and nothing after it is lost."""

    @pytest.mark.parametrize("at", [0, 3, 9, 14, 16, 18, 22, 30, 70])
    def test_a_flipped_byte_costs_its_batch_only(self, tmp_path: Path, at: int) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.release()
        segment = log.segments[2]
        position, header = list(segment.batches())[3]
        flip(segment.path_of(".log"), position + at)
        log = open_log(tmp_path, same_boot=True)
        assert log.log_end_offset == 100
        refused = {n for first, last in ranges(log) for n in range(first, last + 1)}
        assert header.base_offset in refused
        assert len(refused) == 1 or at in (0, 3, 14)  # only the digest shows that a batch's offset or epoch changed
        assert values_of(log) == {n: value for n, value in enumerate(values) if n not in refused}
        with pytest.raises(KafkaError) as refusal:
            log.read(header.base_offset, 1000, up_to=100)
        assert refusal.value.code == ErrorCode.CORRUPT_MESSAGE
        check(log)
        append(log, b"more")
        log = reopened(log, clean=False, same_boot=True)
        assert {n for first, last in ranges(log) for n in range(first, last + 1)} == refused
        check(log)

    @pytest.mark.parametrize("bit", [0, 4, 10, 20, 30, 31])
    @pytest.mark.parametrize("number", [1, -2])
    def test_an_altered_leader_epoch_in_the_active_segment(self, tmp_path: Path, number: int, bit: int) -> None:
        """No digest covers it before the segment is sealed."""
        log = open_log(tmp_path)
        values = fill(log, 60, epoch=3) + fill(log, 40, epoch=5)
        epochs = log.leader_epochs.entries
        log.release()
        position, header = list(log.segments[-1].batches())[number]
        flip_bits(log.segments[-1].path_of(".log"), position + 12, 1 << bit)
        log = open_log(tmp_path, same_boot=True, highest_leader_epoch=5)
        altered = header.base_offset
        assert ranges(log) == [(altered, altered)]
        assert log.leader_epochs.entries == epochs
        assert values_of(log) == {n: value for n, value in enumerate(values) if n != altered}
        check(log)

    @pytest.mark.parametrize("epoch", [5, 7])
    @pytest.mark.parametrize("stop", ["killed", "killed while it wrote", "clean, without indexes"])
    def test_an_altered_last_batch_is_damage(self, tmp_path: Path, stop: str, epoch: int) -> None:
        """A killed process leaves at most the beginning of the batch that it was writing."""
        log = open_log(tmp_path)
        values = [*fill(log, 98, epoch=5), *fill(log, 2, epoch=epoch)]
        epochs = log.leader_epochs.entries
        log.close() if stop.startswith("clean") else log.release()
        path = log.segments[-1].path_of(".log")
        *_, (position, header) = log.segments[-1].batches()
        flip(path, position + 70)
        if stop == "killed while it wrote":
            with open(path, "r+b") as file:
                written = file.read()
                file.write(written[position:-1])
        elif stop.startswith("clean"):
            log.segments[-1].path_of(".index").unlink()
        for _ in range(2):
            log = open_log(tmp_path, clean=stop.startswith("clean"), same_boot=True, highest_leader_epoch=7)
            assert (log.log_end_offset, ranges(log)) == (100, [(99, 99)])
            assert log.leader_epochs.entries == epochs
            assert values_of(log) == dict(enumerate(values[:-1]))
            check(log)
            log.release()
            assert path.stat().st_size == position + header.size_bytes

    def test_damage_at_the_end_that_was_found_before_a_kill_is_kept(self, tmp_path: Path) -> None:
        """The batch's header no longer shows that the batch is complete."""
        log = open_log(tmp_path)
        values = fill(log, 100)
        log = reopened(log, clean=False, same_boot=True)
        segment = log.segments[-1]
        *_, (position, _) = segment.batches()
        flip(segment.path_of(".log"), position + 9)
        log.verify_segment(segment, 0, segment.size)
        assert ranges(log) == [(99, 99)]
        log = reopened(log, clean=False, same_boot=True)
        assert (log.log_end_offset, ranges(log)) == (100, [(99, 99)])
        assert values_of(log) == dict(enumerate(values[:-1]))

    @pytest.mark.parametrize("bit", [24, 31])
    def test_an_impossible_leader_epoch_of_the_last_batch(self, tmp_path: Path, bit: int) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100, epoch=5)
        epochs = log.leader_epochs.entries
        log.release()
        position, _ = list(log.segments[-1].batches())[-1]
        flip_bits(log.segments[-1].path_of(".log"), position + 12, 1 << bit)
        log = open_log(tmp_path, same_boot=True, highest_leader_epoch=5)
        assert (log.log_end_offset, ranges(log)) == (100, [(99, 99)])
        assert values_of(log) == dict(enumerate(values[:-1]))
        assert log.leader_epochs.entries == epochs
        check(log)

    @pytest.mark.parametrize("lost_indexes", [0, 1, 9])
    @pytest.mark.parametrize("known", [{"clean": True}, {"same_boot": True}, {}])
    @pytest.mark.parametrize(
        "wrong", [["7 10"], ["3 0", "9 41"], ["3 0", "5 40", "6 55"], ["8 0"], ["3 0", "5 40", "6 50", "7 60"]]
    )
    def test_a_checkpoint_with_higher_epochs_than_the_batches(
        self, tmp_path: Path, wrong: list[str], known: dict[str, bool], lost_indexes: int
    ) -> None:
        """Each line is well-formed, but the batches contradict it. If a leader used the file, it would report to its
        followers that their logs diverge. The last segments may lack their indexes, too."""
        log = open_log(tmp_path)
        values = fill(log, 40, epoch=3) + fill(log, 20, epoch=5)
        epochs = log.leader_epochs.entries
        log.close()
        (tmp_path / CHECKPOINT).write_text("\n".join(["0", str(len(wrong)), *wrong, ""]))
        for path in sorted(tmp_path.glob("*.index"), reverse=True)[:lost_indexes]:
            path.unlink()
        log = open_log(tmp_path, SMALL, recovery_point=60, highest_leader_epoch=9, **known)
        assert log.leader_epochs.entries == epochs
        assert values_of(log) == dict(enumerate(values))
        check(log)

    @pytest.mark.parametrize("stop", ["killed", "stopped", "stopped and then killed"])
    @pytest.mark.parametrize("number", [20, 30, 39, 59])
    def test_any_altered_leader_epoch(self, tmp_path: Path, number: int, stop: str) -> None:
        """The altered batch is the first, a middle or the last batch of an epoch, or the last batch of the log."""
        log = open_log(tmp_path, LARGE)
        values = fill(log, 20, epoch=3) + fill(log, 20, epoch=5) + fill(log, 20, epoch=7)
        if stop != "killed":
            log.close()
        if stop == "stopped and then killed":
            log = open_log(tmp_path, LARGE, clean=True, same_boot=True)
            values += fill(log, 1, epoch=7)
        log.release()
        (path,) = tmp_path.glob("*.log")
        intact, position = path.read_bytes(), list(log.segments[0].batches())[number][0]
        for at, bit in ((12, 7), (12, 0), (13, 4), (14, 0), (15, 2), (15, 0)):
            altered = bytearray(intact)
            altered[position + at] ^= 1 << bit
            home = tmp_path / f"{at}-{bit}"
            shutil.copytree(tmp_path, home, ignore=lambda folder, names: [n for n in names if Path(folder, n).is_dir()])
            (home / path.name).write_bytes(altered)
            known = {"same_boot": True, "highest_leader_epoch": 7}
            log = open_log(home, LARGE, clean=stop == "stopped", recovery_point=60, **known)
            served = values_of(log)
            assert number not in served
            assert served.items() <= dict(enumerate(values)).items()
            if stop != "stopped":
                assert len(served) == len(values) - 1
            log.release()

    def test_an_epoch_that_is_altered_while_the_broker_runs_in_a_segment_without_a_digest(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LARGE)
        fill(log, 30, epoch=3)
        log.release()
        (path,) = tmp_path.glob("*.log")
        positions = [position for position, _ in log.segments[0].batches()]
        flip(path, positions[10] + 70)
        log = open_log(tmp_path, LARGE, same_boot=True)
        assert ranges(log) == [(10, 10)]
        flip(path, positions[29] + 15)
        log.verify_segment(log.segments[0], 0, 1 << 20)
        assert ranges(log) == [(10, 10), (29, 29)]

    def test_batches_that_an_older_version_appended_are_judged_by_their_neighbors(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, LARGE)
        values = fill(log, 30, epoch=3)
        log.leader_epochs.flush()
        (tmp_path / APPENDED_EPOCHS).unlink()
        values += [*fill(log, 20, epoch=3), *fill(log, 1, epoch=9)]
        log = reopened(log, clean=False, same_boot=True, highest_leader_epoch=3)
        assert values_of(log) == dict(enumerate(values))
        assert not log.damage

    def test_the_first_append_after_a_failed_one_has_another_epoch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = open_log(tmp_path, LARGE)
        values = fill(log, 10, epoch=3)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fail_on_disk)
            with pytest.raises(KafkaError):
                append(log, b"value", epoch=4)
        values += fill(log, 10, epoch=3) + fill(log, 10, epoch=5)
        log = reopened(log, clean=False, same_boot=True, highest_leader_epoch=5)
        assert values_of(log) == dict(enumerate(values))
        assert not log.damage

    def test_a_broker_killed_after_the_first_batch_of_an_epoch_keeps_it(self, tmp_path: Path) -> None:
        """The broker may have died before it recorded the epoch."""
        log = open_log(tmp_path)
        values = [*fill(log, 99, epoch=5), *fill(log, 1, epoch=7)]
        log = reopened(log, clean=False, same_boot=True, highest_leader_epoch=5)
        assert values_of(log) == dict(enumerate(values))
        assert log.leader_epochs.latest_epoch == 7
        assert not log.damage

    def test_leader_epochs_of_another_program_are_not_judged(self, tmp_path: Path) -> None:
        """Apache Kafka's epochs may have started over at 0. It writes no file of the epochs that the broker knows."""
        log = open_log(tmp_path)
        fill(log, 90, epoch=0)
        for epoch in (1, 0, 0):
            append(log, b"value", epoch=epoch)
        log = reopened(log, clean=False, same_boot=True)
        assert len(values_of(log)) == 93
        assert not log.damage

    @pytest.mark.parametrize("number", [1, -2])
    @pytest.mark.parametrize("at", range(12))
    def test_an_altered_offset_or_length_in_the_active_segment(self, tmp_path: Path, at: int, number: int) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.release()
        position, header = list(log.segments[-1].batches())[number]
        flip(log.segments[-1].path_of(".log"), position + at)
        log = open_log(tmp_path, same_boot=True)
        altered = header.base_offset
        assert ranges(log) == [(altered, altered)]
        assert values_of(log) == {n: value for n, value in enumerate(values) if n != altered}
        check(log)

    @pytest.mark.parametrize("lost", ["a batch", "everything", "the file"])
    @pytest.mark.parametrize("flushed", [0, 40])
    def test_a_gap_between_segments_is_named(self, tmp_path: Path, lost: str, flushed: int) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.flush(flushed)
        log.release()
        segment = log.segments[2]
        gap = range(lose_end_of(segment, lost), segment.end_offset)
        log = open_log(tmp_path, recovery_point=flushed, same_boot=True)
        for clean in (True, False, False):
            assert log.log_end_offset == 100
            assert ranges(log) == [(gap[0], gap[-1])]
            assert values_of(log) == {n: value for n, value in enumerate(values) if n not in gap}
            check(log)
            log = reopened(log, clean=clean, same_boot=True)
        assert append(log, b"more") == 100

    @pytest.mark.parametrize("clean", [False, True])
    def test_missing_first_segments_are_named(self, tmp_path: Path, clean: bool) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.close()
        first = log.segments[2].base_offset
        for segment in log.segments[:2]:
            for path in segment.paths:
                path.unlink()
        log = open_log(tmp_path, clean=clean, recovery_point=100, knows_log_start=True, same_boot=True)
        assert log.log_start_offset == 0
        assert ranges(log) == [(0, first - 1)]
        with pytest.raises(KafkaError) as refusal:
            log.read(0, 1000, up_to=100)
        assert refusal.value.code == ErrorCode.CORRUPT_MESSAGE
        assert values_of(log) == {n: value for n, value in enumerate(values) if n >= first}
        log.high_watermark = 100
        log.advance_log_start(first)
        assert not log.damage

    @pytest.mark.parametrize("same_boot", [False, True])
    def test_records_compacted_by_kafka_are_not_missing(self, tmp_path: Path, same_boot: bool) -> None:
        """Kafka compacts above the recovery point, too, and does not keep the last batch of a segment."""
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.release()
        removed = lose_end_of(log.segments[2], "a batch")
        for digest in tmp_path.glob("*.digest"):
            digest.unlink()
        log = open_log(tmp_path, same_boot=same_boot, cleaned_up_to=log.segments[3].base_offset)
        assert not log.damage
        assert values_of(log) == {n: value for n, value in enumerate(values) if n != removed}

    def test_nor_is_it_if_kafka_was_killed_in_its_first_compaction(self, tmp_path: Path) -> None:
        """It writes down how far it has compacted a log when it has compacted all of it."""
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.release()
        removed = {lose_end_of(log.segments[2], "a batch"), lose_end_of(log.segments[-2], "a batch")}
        os.truncate(log.segments[-1].path_of(".log"), 0)  # Kafka had just begun it
        for file in (*tmp_path.glob("*.digest"), tmp_path / APPENDED_EPOCHS):
            file.unlink(missing_ok=True)
        end = log.segments[-1].base_offset
        kept = {n: value for n, value in enumerate(values[:end]) if n not in removed}
        copy = Path(shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy")))
        assert open_log(copy, same_boot=True).damage, "only in a directory that Parley has not used"
        log = open_log(tmp_path, is_kafkas=True)
        assert not log.damage
        assert log.recovery_point == log.log_end_offset == end
        append(log, b"next")
        log.release()
        for same_boot in (True, False):
            log = open_log(tmp_path, recovery_point=end, same_boot=same_boot)
            assert not log.damage
            assert values_of(log) == {**kept, end: b"next"}
            log.release()

    def test_a_torn_batch_ends_a_log_of_kafka(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.release()
        torn = log.segments[2].path_of(".log")
        os.truncate(torn, torn.stat().st_size - 3)
        end = log.segments[3].base_offset - 1
        for file in (*tmp_path.glob("*.digest"), tmp_path / APPENDED_EPOCHS):
            file.unlink(missing_ok=True)
        log = open_log(tmp_path, is_kafkas=True)
        assert not log.damage
        assert values_of(log) == dict(enumerate(values[:end]))

    def test_they_are_named_before_any_checkpoint_of_the_log_start(self, tmp_path: Path) -> None:
        """A broker was killed before its first checkpoint: only the leader epochs show the log start."""
        log = open_log(tmp_path)
        fill(log, 100)
        log.release()
        first = log.segments[1].base_offset
        for path in log.segments[0].paths:
            path.unlink(missing_ok=True)
        log = open_log(tmp_path, same_boot=True, highest_leader_epoch=0)
        assert (log.log_start_offset, ranges(log)) == (0, [(0, first - 1)])

    def test_epochs_that_begin_behind_the_first_segment_do_not_move_the_log_start(self, tmp_path: Path) -> None:
        """All checkpoints were lost, and the epochs of the last segment were rebuilt."""
        log = open_log(tmp_path)
        values = fill(log, 50)
        fill(log, 50, epoch=3)
        log.release()
        (tmp_path / CHECKPOINT).write_text("0\n1\n3 50\n")
        (tmp_path / APPENDED_EPOCHS).unlink()
        log = open_log(tmp_path, same_boot=True, highest_leader_epoch=3)
        assert (log.log_start_offset, values_of(log)[0]) == (0, values[0])

    def test_apache_kafka_has_no_checkpoint_of_most_log_starts(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        fill(log, 100)
        log.release()
        first = log.segments[1].base_offset
        for path in log.segments[0].paths:
            path.unlink(missing_ok=True)
        log = open_log(tmp_path, same_boot=True)
        assert (log.log_start_offset, ranges(log)) == (first, [])

    def test_a_torn_last_batch_is_cut(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.release()
        path = log.segments[-1].path_of(".log")
        os.truncate(path, path.stat().st_size - 1)
        log = open_log(tmp_path, same_boot=True)
        assert not log.damage
        assert values_of(log) == dict(enumerate(values[:99]))
        check(log)

    def test_a_clean_log_is_verified_as_it_is_read(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.close()
        segment = log.segments[1]
        flip(segment.path_of(".log"), list(segment.batches())[3][0] + 70)
        lost = list(segment.batches())[3][1].base_offset
        log = open_log(tmp_path, clean=True, recovery_point=100)
        found: list[tuple[int, int]] = []
        log.on_damage = lambda damaged: found.append((damaged.first_offset, damaged.last_offset))
        with pytest.raises(BlockingIOError):
            log.read(lost - 1, 10_000, up_to=100, nowait=True)
        read = log.read(lost - 1, 10_000, up_to=100)
        assert read.next_offset == lost
        assert found == ranges(log) == [(lost, lost)]
        assert "damaged or missing" in caplog.text
        assert log.read(lost + 1, 10_000, up_to=100, nowait=True).size
        assert values_of(log) == {n: value for n, value in enumerate(values) if n != lost}

    def test_truncation_at_damage_removes_it(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.close()
        segment = log.segments[1]
        position, header = list(segment.batches())[3]
        flip(segment.path_of(".log"), position + 10)
        log = open_log(tmp_path, clean=True, recovery_point=100)
        log.truncate_to(header.base_offset + 1)
        assert log.log_end_offset == header.base_offset
        assert not log.damage
        assert values_of(log) == dict(enumerate(values[: header.base_offset]))
        fill(log, 30)
        check(log)


class TestCrash:
    @pytest.mark.parametrize("flushed", [0, 1, 50, 99, 100])
    def test_everything_written_is_there(self, tmp_path: Path, flushed: int) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        before = index_contents(log)
        log.flush(flushed)
        log = reopened(log, clean=False)
        assert values_of(log) == dict(enumerate(values))
        assert index_contents(log)[-1] == before[-1]
        assert log.recovery_point == flushed
        check(log)

    def test_epochs_are_learned_again(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        for n in range(60):
            append(log, b"v" * 100, epoch=n // 10)
        log.flush(35)
        log = reopened(log, clean=False)
        assert [(e.epoch, e.start_offset) for e in log.leader_epochs.entries] == [(n, n * 10) for n in range(6)]

    @pytest.mark.parametrize("known", [None, 0, 2])
    @pytest.mark.parametrize("clean", [True, False])
    def test_epochs_that_the_checkpoint_lacks_are_learned_again(
        self, tmp_path: Path, known: int | None, clean: bool
    ) -> None:
        """The checkpoint was lost after a shutdown, or an older one was restored. Without these epochs, the log could
        not detect a divergence."""
        log = open_log(tmp_path)
        for n in range(100):
            append(log, b"v" * 100, epoch=n // 40)
        values = values_of(log)
        log.close()
        path = log.leader_epochs.path
        path.unlink()
        if known is not None:
            older = LeaderEpochCache(path)
            for epoch in range(known):
                older.assign(epoch, epoch * 40)
            older.flush()
        log = open_log(tmp_path, clean=clean, recovery_point=100)
        assert [(e.epoch, e.start_offset) for e in log.leader_epochs.entries] == [(0, 0), (1, 40), (2, 80)]
        assert values_of(log) == values
        check(log)

    def test_epochs_of_truncated_records_are_forgotten(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        for n in range(60):
            append(log, b"v" * 100, epoch=n // 10)
        log.leader_epochs.flush()
        log.release()
        segment = log.segments[2]
        os.truncate(segment.path_of(".log"), 10)
        log = open_log(tmp_path)
        end = log.log_end_offset
        assert end == segment.base_offset
        assert log.leader_epochs.latest_epoch == (end - 1) // 10
        check(log)

    def test_transactions_are_indexed_again(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        append_transactions(log)
        append(log, b"v", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        before = log.aborted_transactions(0, log.log_end_offset)
        assert len(before) == 26
        for clean in (False, True, False):
            log.flush(50)
            log = reopened(log, clean=clean)
            assert log.aborted_transactions(0, log.log_end_offset) == before
            log.high_watermark = log.log_end_offset
            assert log.last_stable_offset == 120
            check(log)

    @pytest.mark.parametrize(
        ("spoil", "clean", "which"),
        [*itertools.product((remove_file, cut_entry, flip_in_entries), (True, False), (0, 1, -1))],
    )
    def test_a_damaged_transaction_index_is_rebuilt(
        self, tmp_path: Path, spoil: Callable[[Path], None], clean: bool, which: int
    ) -> None:
        """Otherwise, consumers would get aborted records, or no committed ones."""
        log = open_log(tmp_path)
        append_transactions(log)
        log.flush(log.segments[-1].base_offset)
        before = log.aborted_transactions(0, log.log_end_offset)
        log.close() if clean else log.release()
        spoil(log.segments[which].path_of(".txnindex"))
        for _ in range(2):
            log = open_log(tmp_path, log.config, clean=clean, same_boot=True, recovery_point=log.recovery_point)
            assert log.aborted_transactions(0, log.log_end_offset) == before
            assert log.damage == ()
            log.close() if clean else log.release()

    @pytest.mark.parametrize("lost", ["a batch", "everything", "the file"])
    @pytest.mark.parametrize("flushed", [0, 40])
    def test_the_log_ends_at_a_gap_between_segments(self, tmp_path: Path, lost: str, flushed: int) -> None:
        """The disk lost the last writes to one segment, but not those to the next."""
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.flush(flushed)
        log.release()
        end = lose_end_of(log.segments[2], lost)
        assert flushed <= end
        log = open_log(tmp_path, recovery_point=flushed)
        assert log.log_end_offset == end
        assert values_of(log) == dict(enumerate(values[:end]))
        check(log)
        assert append(log, b"more") == end
        assert len(values_of(reopened(log, clean=False))) == end + 1

    def test_compaction_leaves_holes_where_nothing_can_be_lost(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        fill(log, 100)
        end = log.segments[1].end_offset
        log.flush(end)
        log.release()
        position, header = list(log.segments[1].batches())[-1]
        os.truncate(log.segments[1].path_of(".log"), position)
        log = open_log(tmp_path, recovery_point=end)
        assert list(values_of(log)) == [n for n in range(100) if n != header.base_offset]

    def test_a_log_shorter_than_its_checkpoint(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.flush()
        log.release()
        for segment in log.segments[2:]:
            segment.path_of(".log").unlink()
        log = open_log(tmp_path, recovery_point=100)
        assert values_of(log) == dict(enumerate(values[: log.log_end_offset]))
        assert (log.recovery_point, log.log_end_offset) == (log.segments[1].end_offset,) * 2 or log.log_end_offset < 100
        assert "had been synced up to 100" in caplog.text

    def test_the_log_ends_at_the_first_bad_batch(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        values = fill(log, 100)
        log.release()
        segment = log.segments[2]
        data = bytearray(segment.path_of(".log").read_bytes())
        position, header = list(segment.batches())[3]
        data[position + 70] ^= 1
        segment.path_of(".log").write_bytes(data)
        log = open_log(tmp_path)
        assert log.log_end_offset == header.base_offset
        assert len(log.segments) == 3
        assert values_of(log) == dict(enumerate(values[: header.base_offset]))
        assert fill(log, 50)
        check(log)

    def test_data_below_the_recovery_point_is_trusted(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        fill(log, 100)
        log.flush()
        log.release()
        path = log.segments[0].path_of(".log")
        data = bytearray(path.read_bytes())
        data[70] ^= 1
        path.write_bytes(data)
        assert open_log(tmp_path, recovery_point=100).log_end_offset == 100

    def test_a_log_start_beyond_the_end_empties_the_log(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        fill(log, 50)
        log.release()
        log = open_log(tmp_path, log_start_offset=80)
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (80, 80, 0)
        assert append(log, b"v") == 80
        check(log)

    def test_an_empty_directory_begins_at_the_known_start(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, log_start_offset=7, recovery_point=7)
        assert (log.log_start_offset, log.log_end_offset) == (7, 7)


class TestTornTail:
    """The last batch is truncated at, or has a wrong byte at, each of its positions."""

    @pytest.fixture
    def whole(self, tmp_path: Path) -> tuple[Path, bytes, int]:
        """Return a log's directory, the bytes of its only segment, and the position of the last batch."""
        directory = tmp_path
        log = open_log(directory)
        for n in range(8):
            append(log, b"value %d" % n, producer_id=4, producer_epoch=0, base_sequence=n)
        *_, (position, _) = log.segments[0].batches()
        log.flush(7)
        log.release()
        data = log.segments[0].path_of(".log").read_bytes()
        return directory, data, position

    def recovered(self, directory: Path, data: bytes) -> Log:
        (directory / "00000000000000000000.log").write_bytes(data)
        log = open_log(directory, recovery_point=7)
        check(log)
        log.release()
        return log

    def test_cut(self, whole: tuple[Path, bytes, int]) -> None:
        directory, data, position = whole
        for end in range(position, len(data)):
            log = self.recovered(directory, data[:end])
            assert (log.log_end_offset, log.size_bytes) == (7, position)
        assert self.recovered(directory, data).log_end_offset == 8

    def test_zeros_where_it_was_not_written(self, whole: tuple[Path, bytes, int]) -> None:
        directory, data, position = whole
        for end in range(position, len(data) - 1):
            zeroed = data[:end] + bytes(len(data) - end)
            log = self.recovered(directory, zeroed + bytes(500))
            assert log.log_end_offset == (8 if zeroed == data else 7)

    def test_one_byte_wrong(self, whole: tuple[Path, bytes, int]) -> None:
        directory, data, position = whole
        for at in range(position, len(data)):
            garbled = bytearray(data)
            garbled[at] ^= 0x55
            log = self.recovered(directory, bytes(garbled))
            # Base offset and leader epoch are not in the checksum: a broker patches them.
            unprotected = at - position < 8 or 12 <= at - position < 16
            assert log.log_end_offset == 7 or unprotected

    @pytest.mark.slow
    def test_indexes_cut_anywhere(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        values = fill(log, 60)
        log.close()
        for segment in log.segments:
            for kind in INDEXES:
                path = segment.path_of(kind)
                whole = path.read_bytes()
                for size in range(0, len(whole), 1 if len(whole) < 50 else 5):
                    path.write_bytes(whole[:size])
                    again = open_log(tmp_path, clean=True, recovery_point=60)
                    assert again.log_end_offset == 60
                    for offset in range(0, 60, 11):
                        assert next(headers(again.read(offset, 1, up_to=60).read()))[1].base_offset == offset
                    again.release()
                path.write_bytes(whole)
        assert values_of(open_log(tmp_path, clean=True, recovery_point=60)) == dict(enumerate(values))


class TestLeftovers:
    def test_deleted_files_go(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, replace(SMALL, retention_ms=0))
        fill(log, 50)
        log.high_watermark = 50
        assert apply_retention(log, NOW + 1)
        log = reopened(log, clean=False)
        assert not list(tmp_path.glob("*.deleted"))
        assert log.log_start_offset == 50

    @pytest.mark.parametrize("compacted", [False, True])
    def test_a_lost_segment_is_missing_although_compaction_left_the_old_one(
        self, tmp_path: Path, compacted: bool
    ) -> None:
        log = open_log(tmp_path)
        fill(log, 50)
        log.flush()
        first, second = log.segments[:2]
        kept = log.log_end_offset - second.base_offset
        log.release()
        first.path_of(".log").rename(first.path_of(".log.deleted"))  # and the compacted one in its place is lost
        cleaned = second.base_offset if compacted else None
        log = open_log(tmp_path, recovery_point=50, knows_log_start=True, cleaned_up_to=cleaned, same_boot=True)
        assert ranges(log) == ([(0, second.base_offset - 1)] if compacted else [])
        assert len(values_of(log)) == kept

    def test_an_index_without_its_segment_is_removed(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        fill(log, 50)
        log.close()
        log.segments[-1].path_of(".log").unlink()
        base = log.segments[-1].base_offset
        log = open_log(tmp_path, clean=True)
        assert log.log_end_offset == base
        assert not list(tmp_path.glob(f"{base:020d}.timeindex"))
        check(log)

    @pytest.mark.parametrize("step", range(5))
    @pytest.mark.parametrize("clean", [True, False])
    def test_a_replacement_stopped_anywhere(self, tmp_path: Path, step: int, clean: bool) -> None:
        """The replacement stops before renaming, with some or all files named ``.swap``, after each removal of an old
        segment, or with the new segment partly renamed."""
        log = open_log(tmp_path)
        values = fill(log, 100)
        old = log.segments[1:3]
        header = next(old[0].batches())[1]
        new = Segment.create(tmp_path, old[0].base_offset, SMALL, NOW, ".cleaned")
        new.reopen(SMALL)
        segment_appends.append(new, old[0].file.read(header.size_bytes, 0), [header], 0)
        last = list(old[1].batches())[-1]
        segment_appends.append(new, old[1].file.read(last[1].size_bytes, last[0]), [last[1]], 0)
        new.seal(old[-1].end_offset)
        log.close()
        everything = dict(enumerate(values))
        replaced = {
            n: value
            for n, value in everything.items()
            if not old[0].base_offset <= n < old[-1].end_offset or n in (header.base_offset, last[1].base_offset)
        }
        if step == 1:
            new.path_of(".timeindex").rename(tmp_path / (new.path_of(".timeindex").stem + ".timeindex.swap"))
        if step >= 2:
            new.rename(".swap")
        if step >= 3:
            old[0].rename(".deleted")
        if step >= 4:
            old[1].rename(".deleted")
            new.path_of(".log").rename(tmp_path / new.path_of(".log").name.removesuffix(".swap"))
        log = open_log(tmp_path, clean=clean, recovery_point=100)
        assert values_of(log) == (everything if step < 2 else replaced)
        check(log)
        assert not [path for path in tmp_path.iterdir() if path.suffix in (".swap", ".cleaned", ".deleted")]


def legacy_message(offset: int, magic: int, value: bytes, timestamp: int = NOW) -> bytes:
    """Return a message of an old format as stored in a log."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", timestamp) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


class TestOlderFormats:
    @pytest.mark.parametrize("clean", [True, False])
    @pytest.mark.parametrize("indexed", [True, False])
    def test_segments_of_older_kafkas_are_read_and_appended_to(
        self, tmp_path: Path, clean: bool, indexed: bool
    ) -> None:
        data = b"".join(legacy_message(n, int(n >= 20), b"value %d" % n, NOW + n) for n in range(40))
        (tmp_path / "00000000000000000000.log").write_bytes(data)
        if indexed:
            # As Kafka wrote them: the last offset of an append, and the position where that append began.
            position = len(data) // 2
            while data[position - 1 : position + 7] != b"9" + struct.pack(">q", 20)[:-1]:
                position -= 1
            (tmp_path / "00000000000000000000.index").write_bytes(struct.pack(">ii", 24, position))
            (tmp_path / "00000000000000000000.timeindex").write_bytes(struct.pack(">qi", NOW + 39, 39))
        log = open_log(tmp_path, clean=clean, recovery_point=40 if clean else 0)
        assert log.log_end_offset == 40
        append(log, b"new", timestamp=NOW + 40)
        for offset in range(41):
            found = log.read(offset, 1, up_to=41).read()
            position, header = next(headers(found))
            assert header.base_offset == offset
            expected = b"new" if offset == 40 else b"value %d" % offset
            assert [r.value for r in records(found, position)] == [expected]
        assert log.offset_for_timestamp(NOW + 25) == (NOW + 25, 25, -1)
        assert log.offset_for_timestamp(NOW + 40) == (NOW + 40, 40, 0)
        assert len(values_of(reopened(log, clean=False))) == 41

    def test_a_torn_message(self, tmp_path: Path) -> None:
        whole = b"".join(legacy_message(n, 1, b"value %d" % n) for n in range(3))
        last = len(legacy_message(2, 1, b"value 2"))
        for cut in range(1, last + 1):
            (tmp_path / "00000000000000000000.log").write_bytes(whole[:-cut])
            assert open_log(tmp_path).log_end_offset == 2
        for at in range(12, last):
            garbled = bytearray(whole)
            garbled[len(whole) - last + at] ^= 1
            (tmp_path / "00000000000000000000.log").write_bytes(garbled)
            assert open_log(tmp_path).log_end_offset == 2


def test_a_batch_that_says_it_is_huge_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.storage.damage.checked_batches.LARGE_BATCH", 3 << 20)
    log = open_log(tmp_path)
    append(log, b"a")
    log.release()
    path = log.segments[0].path_of(".log")
    size = path.stat().st_size
    header = bytearray(batch_of(b"b", base_offset=1)[:61])
    struct.pack_into(">i", header, 8, 50_000_000)
    with open(path, "ab") as file:
        file.write(header)
        file.truncate(60_000_000)
    log = open_log(tmp_path)
    assert (log.log_end_offset, path.stat().st_size) == (1, size)
    log.config = LogConfig()
    large = batch_of(b"v" * (4 << 20), base_offset=1)
    log.append_as_follower(large)
    assert reopened(log, clean=False).log_end_offset == 2


class TestRewrittenByKafka:
    """Apache Kafka appends to segments and compacts them, but does not update the digests."""

    def test_it_has_appended_to_the_active_segment_and_sealed_it(self, tmp_path: Path) -> None:
        log = open_log(tmp_path)
        values = fill(log, 30)
        log.close()
        path = log.segments[-1].path_of(".digest")
        digest = path.read_bytes()
        log = open_log(tmp_path, clean=True, recovery_point=30)
        values += fill(log, 60)
        log.close()
        path.write_bytes(digest)
        log = open_log(tmp_path, clean=True, recovery_point=90)
        assert not log.damage
        assert values_of(log) == dict(enumerate(values))
        assert not path.exists()

    @pytest.mark.parametrize("removed", [0.3, 0.9, 1.0])
    def test_it_has_compacted_segments(self, tmp_path: Path, removed: float) -> None:
        log = open_log(tmp_path, replace(SMALL, cleanup_policy=frozenset({"compact"})))
        for n in range(200):
            log.append_as_leader(
                build([Record(0, NOW, b"%d" % (n if n % 10 >= 10 * removed else -1), bytes(100))]),
                leader_epoch=0,
                now_ms=NOW,
            )
        digests = {each.path_of(".digest"): each.path_of(".digest").read_bytes() for each in log.segments[:-1]}
        compacted(log)
        expected = values_of(log)
        log.close()
        for path, digest in digests.items():
            path.write_bytes(digest)
        known = {"clean": True, "recovery_point": 200}
        log = open_log(tmp_path, log.config, **known, cleaned_up_to=log.cleaned_up_to)
        assert not log.damage
        assert values_of(log) == expected
        assert all(segment.digest() is None for segment in log.segments[:-1])

    @pytest.mark.parametrize("lost", ["a batch", "everything", "the file"])
    def test_the_end_of_a_segment_that_was_not_compacted_is_lost_nevertheless(self, tmp_path: Path, lost: str) -> None:
        log = open_log(tmp_path)
        fill(log, 100)
        log.close()
        first = lose_end_of(log.segments[2], lost)
        log = open_log(tmp_path, clean=True, recovery_point=100, cleaned_up_to=log.segments[1].end_offset)
        assert [damaged.first_offset for damaged in log.damage] == [first]
