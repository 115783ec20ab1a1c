"""Damaged and missing ranges are mended with the batches of an intact replica: the result is the undamaged log."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.batch_header import headers
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.protocol.records.crc import seal
from parley.protocol.records.record import Record
from parley.storage import checkpoints
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.mending import CompactedOtherwise
from parley.storage.log import Log, Origin
from parley.storage.segment import Segment
from parley.tools.simulation.disk import Disks
from tests.storage.compaction.compactions import compacted
from tests.storage.logs import NOW, SMALL, append, batch_of, check, fill, open_log, reopened, values_of
from tests.support.faulty_files import only_below
from tests.support.proportion import examples

CONFIG = replace(SMALL, segment_bytes=2000)
END = 120


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of an intact replica, with epochs and transactions."""
    directory = tmp_path_factory.mktemp("intact")
    log = open_log(directory, CONFIG)
    while log.log_end_offset < END:
        n = log.log_end_offset
        append(log, b"%d" % n * 20, b"more" * (n % 7), epoch=n // 20)
        append(log, b"t", producer_id=9, producer_epoch=0, base_sequence=n // 4, epoch=n // 20, transactional=True)
        marker = build_marker(ControlMarker(ControlType(n % 8 // 4), 0), producer_id=9, producer_epoch=0, timestamp=NOW)
        log.append_as_leader(marker, leader_epoch=n // 20, now_ms=NOW, origin=Origin.COORDINATOR)
    log.close()
    return directory


def verify(log: Log, max_bytes: int = 1000) -> None:
    """Verify the whole log in steps, as the scrubber does."""
    for segment in log.segments:
        position = 0
        while position < segment.size:
            position = log.verify_segment(segment, position, max_bytes)
        log.write_missing_digest(segment)


def mend(log: Log, source: Log, damaged: DamagedRange, max_bytes: int = 700) -> None:
    """Mend a range as the broker does: fetch it from the other replica in pieces."""
    with log.mend(damaged) as mending:
        while not mending.is_complete and not mending.is_full:
            read = source.read(mending.next_offset, max_bytes, up_to=source.log_end_offset)
            assert mending.add(read.read())
        removed = mending.finish()
    for path in removed:
        path.unlink()


def mend_all(log: Log, source: Log) -> int:
    """Mend until nothing is damaged. Returns the number of ranges."""
    count = 0
    while log.damage:
        mend(log, source, log.damage[0])
        count += 1
        assert count < 100
    return count


def content(directory: Path) -> dict[str, bytes]:
    """Return the batches in the directory, by the name of their segment."""
    return {path.name: path.read_bytes() for path in directory.glob("*.log")}


def everything(directory: Path) -> bytes:
    return b"".join(data for _, data in sorted(content(directory).items()))


def do_damage(directory: Path, random: Random, *, active: bool) -> None:
    """Damage some files of a closed log."""
    paths = sorted(directory.glob("*.log"))[: None if active else -1]
    for path in random.sample(paths, random.randrange(1, 4)):
        data = bytearray(path.read_bytes())
        at, size = random.randrange(len(data)), random.choice([1, 1, 8, 200, 3000])
        match random.randrange(4):
            case 0:
                data[at : at + size] = random.randbytes(len(data[at : at + size]))
            case 1:
                data[at : at + size] = bytes(len(data[at : at + size]))
            case 2 if path != paths[-1] or not active:
                del data[at:]
            case 3 if path != paths[-1] or not active:
                path.unlink()
                continue
            case _:
                data[at] ^= 1 << random.randrange(8)
        path.write_bytes(data)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 2**32), clean=st.booleans())
@example(seed=20966, clean=False)  # damages a commit marker before an aborted transaction of the same producer
def test_a_mended_log_is_the_undamaged_one(
    intact: Path, tmp_path_factory: pytest.TempPathFactory, seed: int, clean: bool
) -> None:
    random, directory = Random(seed), tmp_path_factory.mktemp("d")
    shutil.copytree(intact, directory, dirs_exist_ok=True)
    source = open_log(intact, CONFIG, clean=True, recovery_point=END)
    do_damage(directory, random, active=False)
    log = open_log(
        directory,
        CONFIG,
        clean=clean,
        recovery_point=source.log_end_offset if clean else 0,
        knows_log_start=True,
        same_boot=True,
    )
    verify(log, random.choice([100, 5000, 10**6]))
    mend_all(log, source)
    assert everything(directory) == everything(intact)
    assert values_of(log) == values_of(source)
    end = source.log_end_offset
    assert log.aborted_transactions(0, end) == source.aborted_transactions(0, end)
    assert log.leader_epochs.entries == source.leader_epochs.entries
    check(log)
    for is_clean in (True, False):
        log = reopened(log, clean=is_clean, knows_log_start=True, same_boot=True)
        verify(log)
        assert not log.damage
        assert values_of(log) == values_of(source)
        check(log)


def test_a_mended_marker_is_indexed_before_later_ones(intact: Path, tmp_path: Path) -> None:
    """The transaction index was also lost, so the scan could not index the damaged marker."""
    source = open_log(intact, CONFIG, clean=True, recovery_point=END)
    shutil.copytree(intact, tmp_path, dirs_exist_ok=True)
    segment = next(each for each in source.segments if each.transactions.count > 1)
    marker = segment.find(segment.transactions.entries()[0].last_offset)
    assert marker is not None
    path = tmp_path / segment.path_of(".log").name
    data = bytearray(path.read_bytes())
    data[marker[0] + marker[1].size_bytes - 1] ^= 1
    path.write_bytes(data)
    path.with_suffix(".txnindex").unlink()
    log = open_log(tmp_path, CONFIG, clean=True, recovery_point=END, knows_log_start=True)
    end = source.log_end_offset
    assert len(log.aborted_transactions(0, end)) == len(source.aborted_transactions(0, end)) - 1
    assert mend_all(log, source) == 1
    assert log.aborted_transactions(0, end) == source.aborted_transactions(0, end)


def damaged_log(intact: Path, directory: Path, damage: Callable[[list[Path]], None]) -> Log:
    shutil.copytree(intact, directory, dirs_exist_ok=True)
    damage(sorted(directory.glob("*.log")))
    log = open_log(directory, CONFIG, clean=True, recovery_point=10**6, knows_log_start=True)
    verify(log)
    assert len(log.damage) == 1
    return log


def flip_in(paths: list[Path]) -> None:
    data = bytearray(paths[1].read_bytes())
    data[300] ^= 1
    paths[1].write_bytes(data)


def remove(paths: list[Path]) -> None:
    paths[1].unlink()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip_in, remove])
def test_a_crash_at_any_step_leaves_the_old_or_the_new(
    intact: Path, tmp_path: Path, damage: Callable[[list[Path]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = damaged_log(intact, tmp_path / "log", damage)
    source = open_log(intact, CONFIG, clean=True, recovery_point=END)
    expected, damaged = values_of(source), log.damage
    copies: list[Path] = []

    def copied(real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(tmp_path / "log", copies[-1])
            return real(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "touch"):
            real = getattr(Path, name)
            patch.setattr(Path, name, only_below(tmp_path / "log", copied(real), real))
        patch.setattr(os, "fsync", only_below(tmp_path / "log", copied(os.fsync), os.fsync))
        mend(log, source, log.damage[0])
    assert len(copies) > 10
    outcomes = set()
    for copy in copies:
        again = open_log(copy, CONFIG, clean=True, recovery_point=10**6, knows_log_start=True)
        verify(again)
        outcomes.add(again.damage == damaged)
        if again.damage:
            assert again.damage == damaged
            mend_all(again, source)
        assert values_of(again) == expected
        check(again)
        again.release()
        assert not list(copy.glob("*.cleaned"))
        assert not list(copy.glob("*.swap"))
    assert outcomes == {True, False}


class _PowerCutError(Exception):
    """Ends the simulated process at a power cut."""


@pytest.mark.slow
@pytest.mark.parametrize("step", range(0, 24, 2))
def test_a_power_cut_at_any_step_loses_nothing(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk keeps any part of the unsynced bytes, and of the unsynced names in any order."""
    with Disks(tmp_path / "disks") as disks:
        disk, rng = disks.disk("machine"), Random(step)
        folder = disk.path / "topic-0"
        folder.mkdir()
        checkpoints.sync_directory(disk.path)
        log = open_log(folder, CONFIG)
        values = fill(log, 60)
        path = log.segments[1].path_of(".log")
        log.close()
        shutil.copytree(folder, tmp_path / "intact")
        source = open_log(tmp_path / "intact", CONFIG, clean=True, recovery_point=60)
        with path.open("r+b") as file:
            file.seek(100)
            file.write(b"damage")
            file.flush()
            os.fsync(file.fileno())
        log = open_log(folder, CONFIG, clean=True, recovery_point=60)
        verify(log)
        (damaged,) = log.damage
        left = step

        def failing(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **kwargs: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    raise _PowerCutError
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch, suppress(_PowerCutError):
            patch.setattr(os, "fsync", only_below(disk.path, failing(os.fsync), os.fsync))
            patch.setattr(Path, "rename", only_below(disk.path, failing(Path.rename), Path.rename))
            mend(log, source, damaged)
        log.release()
        disk.machine_crashed(rng)
        log = open_log(disk.path / "topic-0", CONFIG, recovery_point=60)
        verify(log)
        assert log.damage in ((damaged,), ())
        mend_all(log, source)
        assert values_of(log) == dict(enumerate(values))
        check(log)


def test_the_active_segment_is_sealed_and_mended(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    log = open_log(tmp_path / "a")
    values = fill(log, 10)
    log.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    path = log.segments[0].path_of(".log")
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    log = open_log(tmp_path / "a", clean=True, recovery_point=10)
    source = open_log(tmp_path / "b", clean=True, recovery_point=10)
    verify(log)
    assert mend_all(log, source) == 1
    assert len(log.segments) == 2
    assert values_of(log) == dict(enumerate(values))
    append(log, b"more")
    check(log)


def test_wrong_batches_are_refused(intact: Path, tmp_path: Path) -> None:
    log = damaged_log(intact, tmp_path, flip_in)
    source = open_log(intact, CONFIG, clean=True, recovery_point=END)
    damaged = log.damage[0]
    first = damaged.first_offset
    right = source.read(first, 1, up_to=END).read()
    epoch = next(headers(right))[1].partition_leader_epoch
    with log.mend(damaged) as mending:
        wrong = bytearray(right)
        wrong[-1] ^= 1
        for batch, why in [
            (wrong, "checksum"),
            (batch_of(b"v", base_offset=damaged.last_offset, partition_leader_epoch=epoch), "do not continue"),
            (batch_of(*[b"v"] * 50, base_offset=first, partition_leader_epoch=epoch), "overlap"),
            (batch_of(b"v", base_offset=first, partition_leader_epoch=99), "leader epoch"),
        ]:
            if why == "do not continue" and damaged.last_offset == first:
                continue
            with pytest.raises(KafkaError, match=why) as refusal:
                mending.add(batch)
            assert refusal.value.code == ErrorCode.CORRUPT_MESSAGE
        with pytest.raises(KafkaError, match="already being mended"):
            log.mend(damaged)
        with pytest.raises(ValueError, match="mended only up to"):
            mending.finish()
    assert log.damage == (damaged,)
    assert not list(tmp_path.glob("*.cleaned"))
    with log.mend(damaged) as mending:  # valid and in order, but not the original batches
        other = source.read(first, 1 << 20, up_to=damaged.last_offset + 1).read()
        other[-1] ^= 1
        for at, header in headers(other):
            seal(other, at, header.size_bytes)
        mending.add(other)
        with pytest.raises(KafkaError, match="differ from the digest"):
            mending.finish()
    assert log.damage == (damaged,)
    mend(log, source, damaged)
    assert not log.damage
    with pytest.raises(KafkaError, match="no longer damaged"):
        log.mend(damaged)


def test_a_log_that_is_truncated_meanwhile_is_not_mended(intact: Path, tmp_path: Path) -> None:
    log = damaged_log(intact, tmp_path, flip_in)
    source = open_log(intact, CONFIG, clean=True, recovery_point=END)
    with log.mend(log.damage[0]) as mending:
        mending.add(source.read(mending.next_offset, 10_000, up_to=END).read())
        log.truncate_to(100)
        before = everything(tmp_path)
        with pytest.raises(KafkaError, match="changed while it was mended"):
            mending.finish()
    assert everything(tmp_path) == before
    assert not list(tmp_path.glob("*.cleaned*"))
    mend_all(log, source)
    check(log)


@pytest.mark.parametrize(("call", "error"), [("pwrite", errno.ENOSPC), ("open", errno.ENOSPC), ("open", errno.EMFILE)])
def test_a_shortage_ends_the_mending_only(
    intact: Path, tmp_path: Path, call: str, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[OSError] = []
    shutil.copytree(intact, tmp_path, dirs_exist_ok=True)
    flip_in(sorted(tmp_path.glob("*.log")))
    log = open_log(tmp_path, CONFIG, clean=True, recovery_point=10**6, on_io_error=errors.append)
    verify(log)

    def short(*args: object) -> int:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, only_below(tmp_path, short, getattr(os, call)))
        with pytest.raises(KafkaError) as refusal:
            log.mend(log.damage[0])
    assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not errors
    mend_all(log, open_log(intact, CONFIG, clean=True, recovery_point=END))


@pytest.mark.parametrize("damage", [flip_in, remove])
def test_appends_wait_for_the_renames_only(
    intact: Path,
    tmp_path: Path,
    damage: Callable[[list[Path]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lock is held neither while batches are read nor during a sync."""
    log = damaged_log(intact, tmp_path, damage)
    source = open_log(intact, CONFIG, clean=True, recovery_point=END)
    steps: list[tuple[str, bool]] = []

    def takes_the_lock() -> bool:
        free = log._lock.acquire(blocking=False)
        if free:
            log._lock.release()
        return free

    def noted(real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            steps.append((real.__name__, others.submit(takes_the_lock).result()))
            return real(*args, **kwargs)

        return step

    with ThreadPoolExecutor(1) as others, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", only_below(tmp_path, noted(os.fsync), os.fsync))
        patch.setattr(Segment, "batches", noted(Segment.batches))
        mend(log, source, log.damage[0])
    assert ("batches", True) in steps
    assert ("batches", False) not in steps
    assert ("fsync", False) not in steps
    assert steps[-1] == ("fsync", True)
    assert everything(tmp_path) == everything(intact)


def test_the_scrubber_writes_missing_digests(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    log.close()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.digest")}
    for name in before:
        (tmp_path / name).unlink()
    log = open_log(tmp_path, clean=True, recovery_point=100)
    verify(log, 300)
    del before[f"{log.segments[-1].base_offset:020d}.digest"]
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.digest")} == before
    assert log.read(0, 1000, up_to=100, nowait=True).size


def test_a_segment_removed_from_a_running_log_is_mended(intact: Path, tmp_path: Path) -> None:
    shutil.copytree(intact, tmp_path, dirs_exist_ok=True)
    log = open_log(tmp_path, CONFIG, clean=True, recovery_point=END)
    source = open_log(intact, CONFIG, clean=True, recovery_point=END)
    segment = log.segments[2]
    segment.path_of(".log").unlink()
    with pytest.raises(KafkaError) as refusal:
        log.read(segment.base_offset, 1000, up_to=END)
    assert refusal.value.code == ErrorCode.CORRUPT_MESSAGE
    assert [(each.first_offset, each.last_offset) for each in log.damage] == [
        (segment.base_offset, segment.end_offset - 1)
    ]
    mend_all(log, source)
    assert everything(tmp_path) == everything(intact)


def test_a_tombstone_is_mended_although_each_replica_dates_its_removal_itself(tmp_path: Path) -> None:
    """The delete horizon (KIP-534) is in the header of the batch. It depends on the time of each replica's own
    compaction."""
    replicas = []
    for number, name in enumerate(("one", "other")):
        (tmp_path / name).mkdir()
        log = open_log(tmp_path / name, replace(CONFIG, cleanup_policy=frozenset({"compact"})))
        for key in range(60):
            value = None if key % 3 == 0 else b"v" * 20
            log.append_as_leader(build([Record(0, NOW, b"%d" % key, value)]), leader_epoch=0, now_ms=NOW)
        log.roll()
        compacted(log, now_ms=NOW + number)
        replicas.append(log)
    damaged, source = replicas
    assert everything(damaged.directory) != everything(source.directory)
    damaged.close()
    flip_in(sorted(damaged.directory.glob("*.log")))
    damaged = open_log(damaged.directory, damaged.config, clean=True, recovery_point=60, knows_log_start=True)
    verify(damaged)
    assert mend_all(damaged, source) == 1
    assert values_of(damaged) == values_of(source)
    verify(damaged)
    assert not damaged.damage


COMPACTED = replace(CONFIG, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000)


def keyed(log: Log, key: bytes, value: bytes | None, padding: int = 0) -> None:
    """Append one record, and ``padding`` records of other keys, which compaction keeps."""
    others = [b"%d" % (log.log_end_offset + n) for n in range(padding)]
    made = [Record(0, NOW, key, value), *(Record(0, NOW, other, b"v" * 40) for other in others)]
    log.append_as_leader(build(made), leader_epoch=0, now_ms=NOW)


def two_replicas(folder: Path, *, compacted_one: int) -> tuple[Log, Log]:
    """Return two replicas of a log with a value, and its tombstone in the next segment. One replica is compacted, and
    contains neither."""
    logs = []
    for number in range(2):
        (folder / f"{number}").mkdir()
        log = open_log(folder / f"{number}", COMPACTED)
        keyed(log, b"k", b"deleted", padding=5)
        log.roll()
        keyed(log, b"k", None, padding=5)
        log.roll()
        keyed(log, b"last", b"v")
        if number == compacted_one:
            compacted(log)
            keyed(log, b"last", b"w")
            log.roll()
            compacted(log, now_ms=NOW + 2000)
            assert log.tombstones_removed_up_to == 12
        logs.append(log)
    return logs[0], logs[1]


@pytest.mark.parametrize("removed_by", ["other", "own"])
def test_a_replica_that_was_compacted_otherwise_brings_no_deleted_key_back(tmp_path: Path, removed_by: str) -> None:
    """The other replica's batches would lack a tombstone whose value is in this log, or contain a value whose tombstone
    this log has removed."""
    log, source = two_replicas(tmp_path, compacted_one=removed_by == "other")
    number = 1 if removed_by == "other" else 0
    log.close()
    path = log.segments[number].path_of(".log")
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    log = open_log(log.directory, COMPACTED, clean=True, recovery_point=log.log_end_offset, knows_log_start=True)
    log.segments[number].forget_digest()
    verify(log)
    (damaged,) = log.damage
    before = everything(log.directory)
    with log.mend(damaged) as mending:
        read = source.read(damaged.first_offset, 10_000, up_to=source.log_end_offset)
        for at, header in headers(data := read.read()):
            mending.skip_to(header.base_offset)
            mending.add(data[at : at + header.size_bytes])
        mending.skip_to(damaged.last_offset + 1)
        mending.lacks_tombstones = source.tombstones_removed_up_to > damaged.first_offset
        with pytest.raises(CompactedOtherwise):
            mending.finish()
    assert log.damage == (damaged,)
    assert everything(log.directory) == before


def test_a_digest_proves_that_a_compacted_segment_is_as_it_was(tmp_path: Path) -> None:
    log, _ = two_replicas(tmp_path, compacted_one=0)
    log.close()
    shutil.copytree(log.directory, tmp_path / "same")
    source = open_log(tmp_path / "same", COMPACTED, clean=True, recovery_point=log.log_end_offset)
    path = log.segments[0].path_of(".log")
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    log = open_log(log.directory, COMPACTED, clean=True, recovery_point=log.log_end_offset, knows_log_start=True)
    verify(log)
    (damaged,) = log.damage
    with log.mend(damaged) as mending:
        mending.lacks_tombstones = True
        mending.add(source.read(damaged.first_offset, 10_000, up_to=source.log_end_offset).read())
        mending.skip_to(damaged.last_offset + 1)
        mending.finish()
    assert values_of(log) == values_of(source)
    verify(log)
    assert not log.damage
