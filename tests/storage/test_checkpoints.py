"""Checkpoint files: exactly Kafka's format, replaced atomically; a malformed file counts as missing."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from parley.protocol.uuids import UUID
from parley.storage.boot_id import POWER_CUT_FILE, cut_by_power, note_power_cut
from parley.storage.checkpoints import (
    INT64_MAX,
    LOG_START_OFFSETS,
    MalformedCheckpoint,
    OffsetCheckpoint,
    decode,
    encode,
    with_blank_checksum,
    write_atomically,
)
from parley.storage.compaction.tombstone_checkpoint import CHECKPOINT as TOMBSTONE_CHECKPOINT
from parley.storage.compaction.tombstone_checkpoint import TombstoneCheckpoint
from parley.storage.damage.verified_files import VERIFIED_SEGMENTS, take_verified
from parley.storage.leader_epoch_cache import CHECKPOINT, EpochStart, LeaderEpochCache
from parley.storage.unwritten_logs import UNWRITTEN_LOGS, UnwrittenLog, UnwrittenLogs
from tests.support.faulty_files import only_below
from tests.support.flipped_bits import each_bit_flipped

topics = st.text("abcXYZ019._-", min_size=1, max_size=20)
offsets = st.dictionaries(st.tuples(topics, st.integers(0, 2**31 - 1)), st.integers(0, INT64_MAX), max_size=20)


def test_the_format_is_kafkas_with_a_line_for_the_checksum(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / "recovery-point-offset-checkpoint")
    checkpoint.write({("my.topic", 0): 42, ("other-topic", 11): 0})
    crc = crc32c(b"my.topic 0 42\nother-topic 11 0")
    checksum = b":crc32c: %d %d\n" % (crc & 0x7FFFFFFF, crc)
    assert checkpoint.path.read_bytes() == b"0\n3\nmy.topic 0 42\nother-topic 11 0\n" + checksum
    assert os.listdir(tmp_path) == [checkpoint.path.name]


def test_a_checkpoint_without_a_checksum_is_accepted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Apache Kafka writes none, also where Parley has written one before."""
    checkpoint = OffsetCheckpoint(tmp_path / LOG_START_OFFSETS)
    checkpoint.write({("t", 0): 3})
    checkpoint.path.write_bytes(encode(["t 0 4"]))
    assert checkpoint.read() == {("t", 0): 4}
    assert not caplog.records


def test_no_altered_byte_alters_an_offset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If only the checksum or a number in the head of the file is altered, the offsets still count."""
    checkpoint = OffsetCheckpoint(tmp_path / LOG_START_OFFSETS)
    written = {("t", 0): 120, ("u", 1): 7}
    checkpoint.write(written)
    data = checkpoint.path.read_bytes()
    first, last = data.index(b"t 0"), data.index(b":")
    for at, byte in product(range(len(data)), (*b"0193 x:/", 0, 0xFF)):
        if data[at] != byte:
            checkpoint.path.write_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
            caplog.clear()
            is_lost = at == 1 or first - 1 <= at < last
            assert checkpoint.read() == ({} if is_lost else written), (at, byte)
            assert bool(caplog.records) == (is_lost or at >= last)


@given(offsets)
def test_written_offsets_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[tuple[str, int], int]
) -> None:
    checkpoint = OffsetCheckpoint(tmp_path_factory.getbasetemp() / "round-trip")
    checkpoint.write(offsets)
    assert checkpoint.read() == offsets


def test_a_missing_or_empty_file_has_no_entries(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / "replication-offset-checkpoint")
    assert checkpoint.read() == {}
    checkpoint.path.write_bytes(b"")
    assert checkpoint.read() == {}


@pytest.mark.parametrize(
    "data",
    [
        b"1\n0\n",
        b"x\n",
        b"0\n-1\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0 1\nb 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 1 2\n",
        b"0\n1\na 0 -1\n",
        b"0\n1\na 0 9223372036854775808\n",
        b"0\n1\na 2147483648 0\n",
        b"0\n1\na 0 \xd9\xa1\n",
        b"0\n1\na 0 1\n\n",
        b"\xff\xfe\n",
        b"0\n99999999999999999999999999\n",
    ],
)
def test_a_malformed_file_is_as_if_missing(tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / "log-start-offset-checkpoint")
    checkpoint.path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert checkpoint.read() == {}
    assert str(checkpoint.path) in caplog.text
    assert "is damaged" in caplog.text


def test_a_failing_disk_is_not_a_malformed_file(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / "recovery-point-offset-checkpoint")
    checkpoint.path.mkdir()
    with pytest.raises(IsADirectoryError):
        checkpoint.read()


@given(st.binary(max_size=200) | st.text("0123456789 \n-ab", max_size=100).map(str.encode))
def test_any_bytes_are_understood_or_refused(data: bytes) -> None:
    try:
        words = decode(data, tuple)
    except MalformedCheckpoint:
        return
    assert [
        tuple(line.split()) for line in encode(" ".join(entry) for entry in words).decode().split("\n")[2:-1]
    ] == words


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", only_below(tmp_path, full, os.fsync))
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


# Leader epochs


def cache(tmp_path: Path, *entries: tuple[int, int]) -> LeaderEpochCache:
    epochs = LeaderEpochCache(tmp_path / CHECKPOINT)
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def pairs(epochs: LeaderEpochCache) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in epochs.entries]


def test_epochs_are_kept_in_kafkas_format(tmp_path: Path) -> None:
    epochs = cache(tmp_path, (0, 0), (2, 10), (2, 15), (5, 20))
    assert not epochs.path.exists()
    epochs.flush()
    lines = [line.split() for line in epochs.path.read_text().splitlines()]
    assert lines == [["0"], ["3"], ["0", "0"], ["2", "10"], ["5", "20"]]
    assert LeaderEpochCache(epochs.path).entries == epochs.entries


def test_an_epoch_begins_where_it_did_after_a_newer_one_is_refuted(tmp_path: Path) -> None:
    """After a crash, the log end was in epoch 1 again, and the leader of epoch 2 recorded that end as the start of its
    epoch. Then it fetched the lost records of epoch 1."""
    assert pairs(cache(tmp_path, (0, 0), (1, 1), (2, 56), (1, 56))) == [(0, 0), (1, 1)]
    assert pairs(cache(tmp_path, (0, 0), (1, 5), (2, 56), (1, 3))) == [(0, 0), (1, 3)]


def test_where_an_epoch_ended(tmp_path: Path) -> None:
    epochs = cache(tmp_path, (2, 10), (5, 20), (7, 30))
    assert epochs.latest_epoch == 7
    assert epochs.end_offset_for(7, 40) == (7, 40)
    assert epochs.end_offset_for(5, 40) == (5, 30)
    assert epochs.end_offset_for(6, 40) == (5, 30)
    assert epochs.end_offset_for(4, 40) == (2, 20)
    assert epochs.end_offset_for(1, 40) == (1, 10)
    assert epochs.end_offset_for(8, 40) == (-1, -1)
    assert epochs.end_offset_for(-1, 40) == (-1, -1)
    assert [epochs.epoch_at(offset) for offset in (9, 10, 19, 20, 99)] == [None, 2, 2, 5, 7]


def test_epochs_are_flushed_by_many_threads(tmp_path: Path) -> None:
    epochs = LeaderEpochCache(tmp_path / CHECKPOINT)
    with ThreadPoolExecutor(4) as pool:
        flushes = []
        for epoch in range(100):
            epochs.assign(epoch, epoch)
            flushes += [pool.submit(epochs.flush) for _ in range(4)]
        for flush in flushes:
            flush.result()
    assert LeaderEpochCache(epochs.path).entries == epochs.entries


def test_an_empty_cache_has_no_answer(tmp_path: Path) -> None:
    epochs = cache(tmp_path, (-1, 5))
    assert epochs.latest_epoch is None
    assert epochs.entries == ()
    assert epochs.end_offset_for(0, 40) == (-1, -1)
    assert epochs.end_offset_for(-3, 40) == (-1, -1), "clients may ask for any number"


def test_a_contradicted_entry_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    epochs = cache(tmp_path, (1, 0), (2, 10), (3, 20))
    epochs.assign(4, 20)
    assert pairs(epochs) == [(1, 0), (2, 10), (4, 20)]
    assert caplog.text == ""
    epochs.assign(5, 5)
    assert pairs(epochs) == [(1, 0), (5, 5)]
    assert "contradict epoch" in caplog.text
    epochs.assign(5, 2)
    assert pairs(epochs) == [(1, 0), (5, 2)]


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (3, 25, [(1, 0), (2, 20), (3, 25), (4, 30)]),
        (4, 28, [(1, 0), (2, 20), (4, 28)]),  # epoch 4 began before the first known batch
        (2, 25, None),
        (1, 25, None),
        (5, 25, None),
        (-1, 25, None),
        (9, 90, [(1, 0), (2, 20), (4, 30), (9, 90)]),
    ],
)
def test_an_older_epoch_is_inserted_where_it_fits(
    tmp_path: Path, epoch: int, start: int, expected: list[tuple[int, int]] | None
) -> None:
    cache = LeaderEpochCache(tmp_path / CHECKPOINT)
    before = [(1, 0), (2, 20), (4, 30)]
    for each in before:
        cache.assign(*each)
    cache.insert(epoch, start)
    assert [(entry.epoch, entry.start_offset) for entry in cache.entries] == (expected or before)


def test_truncation_from_both_ends(tmp_path: Path) -> None:
    epochs = cache(tmp_path, (1, 0), (2, 10), (3, 20), (4, 30))
    epochs.truncate_from_end(30)
    assert pairs(epochs) == [(1, 0), (2, 10), (3, 20), (4, 30)]  # the log still has all records from before epoch 4
    epochs.truncate_from_end(29)
    assert pairs(epochs) == [(1, 0), (2, 10), (3, 20)]
    epochs.truncate_from_start(15)
    assert pairs(epochs) == [(2, 15), (3, 20)]
    epochs.truncate_from_start(20)
    assert pairs(epochs) == [(3, 20)]
    epochs.truncate_from_start(5)
    assert pairs(epochs) == [(3, 20)]
    epochs.truncate_from_start(50)
    assert pairs(epochs) == [(3, 50)]
    epochs.clear()
    assert epochs.entries == ()


def test_a_malformed_epoch_checkpoint_is_as_if_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / CHECKPOINT).write_text("0\n1\n0 zero\n")
    assert cache(tmp_path).entries == ()
    assert "malformed" in caplog.text


UNWRITTEN = {("topic", index): UnwrittenLog(UUID(int=7), is_moving=index == 1) for index in range(2)}


@pytest.mark.parametrize(
    ("name", "put", "get", "if_malformed"),
    [
        (
            CHECKPOINT,
            lambda path: cache(path.parent, (3, 0), (5, 100), (8, 108), (9, 1_000_000)).flush(),
            lambda path: LeaderEpochCache(path).entries,
            (),
        ),
        (
            TOMBSTONE_CHECKPOINT,
            lambda path: TombstoneCheckpoint(path, 0).set(123),
            lambda path: TombstoneCheckpoint(path, 5000).up_to,
            5000,
        ),
        (
            POWER_CUT_FILE,
            lambda path: note_power_cut(path.parent, [("one", 0), ("two", 12)]),
            lambda path: cut_by_power(path.parent, [("one", 0), ("two", 12), ("three", 0)]),
            {("one", 0), ("two", 12), ("three", 0)},
        ),
        (
            UNWRITTEN_LOGS,
            lambda path: UnwrittenLogs(path).write(UNWRITTEN),
            lambda path: UnwrittenLogs(path).read(same_boot=False),
            {},
        ),
        (
            VERIFIED_SEGMENTS,
            lambda path: path.write_bytes(with_blank_checksum(encode(["one 0 0 12 4096 1790000000123456789"]))),
            lambda path: take_verified(path.parent, is_valid=True),
            {},
        ),
    ],
)
def test_a_flipped_bit_is_never_read_as_another_value(
    tmp_path: Path, name: str, put: Callable[[Path], None], get: Callable[[Path], object], if_malformed: object
) -> None:
    path = tmp_path / name
    put(path)
    written, expected = path.read_bytes(), get(path)
    assert expected != if_malformed
    for altered in each_bit_flipped(written):
        path.write_bytes(altered)
        assert get(path) in (expected, if_malformed), altered


@pytest.mark.parametrize("text", ["0\n2\n3 40\n5 90\n", "0\n2\n3 40\n5 90", "0\r\n2\r\n3 40\r\n5 90\r\n"])
def test_leader_epochs_without_a_checksum_are_read(tmp_path: Path, text: str) -> None:
    """Apache Kafka and older versions write none."""
    (tmp_path / CHECKPOINT).write_bytes(text.encode())
    assert pairs(LeaderEpochCache(tmp_path / CHECKPOINT)) == [(3, 40), (5, 90)]


steps = st.lists(
    st.tuples(st.sampled_from(["assign", "end", "start"]), st.integers(0, 9), st.integers(0, 40)), max_size=30
)


@given(steps)
def test_epochs_always_rise_and_survive_a_flush(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "epochs"
    path.unlink(missing_ok=True)
    epochs = LeaderEpochCache(path)
    for step, epoch, offset in steps:
        if step == "assign":
            epochs.assign(epoch, offset)
            assert EpochStart(epoch, offset) in epochs.entries or epochs.latest_epoch == epoch
        elif step == "end":
            epochs.truncate_from_end(offset)
            assert all(entry.start_offset <= offset for entry in epochs.entries)
        else:
            before = epochs.epoch_at(offset)
            epochs.truncate_from_start(offset)
            assert epochs.epoch_at(offset) == before
            assert all(entry.start_offset >= offset for entry in epochs.entries)
        known = epochs.entries
        assert list(known) == sorted(known, key=lambda entry: entry.epoch)
        assert list(known) == sorted(known, key=lambda entry: entry.start_offset)
        assert len({entry.epoch for entry in known}) == len({entry.start_offset for entry in known}) == len(known)
        epochs.flush()
        assert LeaderEpochCache(path).entries == known
