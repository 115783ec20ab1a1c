"""A broker serves the same records after one byte of an index or a snapshot was altered while the broker was down.

Every byte of every such file is altered, after a clean stop, and after a kill with and without earlier syncs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.storage.log import Log, Origin
from tests.storage.logs import NOW, SMALL, append, open_log, values_of

CONFIG = replace(SMALL, segment_bytes=1536, segment_index_bytes=96)
STOPS = ("clean", "killed", "killed before a sync")


def fill(directory: Path) -> Log:
    """Write two segments with overlapping transactions of both outcomes; three records have the same timestamp."""
    log = open_log(directory, CONFIG)
    for n in range(8):
        producer, sequence, timestamp = n % 2, 2 * (n // 2), NOW + n // 3
        for each in (sequence, sequence + 1):
            append(
                log, b"v" * 60,
                producer_id=producer, producer_epoch=0, base_sequence=each, transactional=True, timestamp=timestamp,
            )  # fmt: skip
        kind = ControlType.ABORT if n % 4 else ControlType.COMMIT
        marker = build_marker(ControlMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp=timestamp)
        log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR)
    append(log, b"v", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True, timestamp=NOW + 3)
    return log


def stopped(directory: Path, stop: str) -> int:
    """Write a log and stop its broker. Returns the recovery point."""
    log = fill(directory)
    assert [segment.transactions.count > 0 for segment in log.segments] == [True, True]
    if stop == "clean":
        log.close()
        return log.recovery_point
    if stop == "killed":
        log.flush(log.segments[-1].base_offset)
    log.release()
    return log.recovery_point


def served(log: Log) -> tuple[object, ...]:
    """Return what clients can see of a log, and what decides about the next batches of producers."""
    end = log.high_watermark = log.log_end_offset
    return (
        values_of(log),
        [log.aborted_transactions(start, stop) for start in range(end) for stop in (start + 1, end)],
        [log.offset_for_timestamp(NOW + late) for late in range(-1, 5)],
        log.max_timestamp(),
        sorted(log.producers.entries),
        log.last_stable_offset,
        log.damage,
    )


def altered(directory: Path, kind: str) -> Iterator[tuple[str, int]]:
    """Alter each byte of each file of a kind in turn. Yields the file's name and the position of the byte."""
    for path in sorted(directory.glob("*" + kind)):
        data = path.read_bytes()
        for at in range(len(data)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            yield path.name, at
        path.write_bytes(data)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("kind", [".txnindex", ".index", ".timeindex", ".snapshot"])
def test_an_altered_byte_changes_nothing_that_is_served(tmp_path: Path, kind: str, stop: str) -> None:
    stored, directory = tmp_path / "stored", tmp_path / "topic-0"
    stored.mkdir()
    recovery_point = stopped(stored, stop)
    shutil.copytree(stored, directory)
    known = {"clean": stop == "clean", "same_boot": True, "recovery_point": recovery_point, "highest_leader_epoch": 0}
    log = open_log(directory, CONFIG, **known)
    before, tried = served(log), 0
    log.release()
    for name, at in altered(stored, kind):
        shutil.rmtree(directory)
        shutil.copytree(stored, directory)
        log = open_log(directory, CONFIG, **known)
        assert served(log) == before, f"byte {at} of {name}"
        log.release()
        tried += 1
    assert tried or (kind, stop) == (".snapshot", "killed before a sync")
