"""A log with arbitrary bytes in its files opens, and returns correct records or the protocol's error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import headers
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.storage.log import Log, Origin
from parley.storage.log_config import LogConfig
from tests.storage.logs import NOW, append, check, open_log
from tests.support.proportion import examples

CONFIG = LogConfig(segment_bytes=3000, segment_index_bytes=1024, index_interval_bytes=200)
HINTS = (
    *(".index", ".timeindex", ".txnindex", ".digest", ".snapshot"),
    *("leader-epoch-checkpoint", "appended-leader-epochs"),
)
"""Files whose damage must not change what ``read_all`` returns."""
KNOWN: dict[str, Any] = {"same_boot": True, "highest_leader_epoch": 2}
"""How to open a log so that the leader epochs in its files are used."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a log with batches of every kind."""
    directory = tmp_path_factory.mktemp("filled")
    log = open_log(directory, CONFIG, **KNOWN)
    for n in range(60):
        append(log, b"%d" % n * 20, timestamp=NOW + n * 7 % 50, epoch=n // 20)
        append(log, b"t", epoch=n // 20, producer_id=9, producer_epoch=0, base_sequence=n, transactional=True)
        if n % 5 == 0:
            marker = build_marker(ControlMarker(ControlType(n % 2), 0), producer_id=9, producer_epoch=0, timestamp=NOW)
            log.append_as_leader(marker, leader_epoch=n // 20, now_ms=NOW, origin=Origin.COORDINATOR)
    log.close()
    return directory


NEAR = 200
"""More offsets than the log contains records. A damaged header may claim an end that is billions of offsets away."""


def read_all(log: Log) -> dict[int, bytes | None]:
    """Return every readable record, each read by its own offset."""
    found = _read(log, {log.log_start_offset, log.log_end_offset})
    edges = {edge for each in log.damage for edge in (each.first_offset, each.last_offset)}
    return {**found, **_read(log, edges)}


def _read(log: Log, edges: AbstractSet[int]) -> dict[int, bytes | None]:
    """Return the records at all offsets of the log near the given offsets."""
    start, end = log.log_start_offset, log.log_end_offset
    offsets = {n for edge in edges for n in range(max(start, edge - NEAR), min(end, edge + NEAR))}
    found: dict[int, bytes | None] = {}
    for offset in sorted(offsets):
        try:
            data = log.read(offset, 500, up_to=log.log_end_offset).read()
            for position, _ in headers(data):
                found.update({r.offset: r.value for r in records(data, position) if r.offset == offset})
        except KafkaError as error:
            assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)  # noqa: PT017
    return found


def damaged(data: bytes, random: Random) -> bytes:
    """Return the bytes with some changed, removed or inserted, or all replaced."""
    changed = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        at, size = random.randrange(len(changed) + 1), random.choice([1, 1, 4, 8, 30, 200])
        kind = random.randrange(6)
        if kind == 0:
            changed[at : at + size] = random.randbytes(size)
        elif kind == 1:
            del changed[at : at + size]
        elif kind == 2:
            changed[at:at] = random.randbytes(size)
        elif kind == 3:
            changed[at : at + size] = bytes(size)
        elif kind == 4:
            changed[at : at + size] = changed[:size]
        else:
            del changed[at:]
    return bytes(changed) if random.random() < 0.95 else random.randbytes(random.randrange(2000))


def open_damaged(filled: Path, directory: Path, seed: int, *, clean: bool, hints_only: bool) -> Log:
    random = Random(seed)
    shutil.rmtree(directory)
    shutil.copytree(filled, directory)
    names = sorted(path.name for path in filled.iterdir())
    for name in random.sample(names, random.randrange(1, 4)):
        if name.endswith(HINTS) or not hints_only:
            path = directory / name
            path.write_bytes(damaged(path.read_bytes(), random))
    return open_log(directory, CONFIG, clean=clean, recovery_point=130 if clean else 0, **KNOWN)


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**32), clean=st.booleans())
@example(seed=97350915, clean=True)  # the index has a negative position
def test_no_damage_to_hints_changes_a_record(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, seed: int, clean: bool
) -> None:
    whole = read_all(open_log(filled, CONFIG, clean=True, recovery_point=10**6, **KNOWN))
    log = open_damaged(filled, tmp_path_factory.mktemp("d"), seed, clean=clean, hints_only=True)
    assert read_all(log) == whole
    for timestamp in range(NOW - 1, NOW + 60, 7):
        log.offset_for_timestamp(timestamp)
    log.max_timestamp()
    append(log, b"more")
    log.truncate_to(50)
    append(log, b"more")
    log.close()


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**32), clean=st.booleans())
@example(seed=362880, clean=True)  # the active segment contains no readable batch
def test_any_damage_is_an_answer_or_an_error(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, seed: int, clean: bool
) -> None:
    log = open_damaged(filled, tmp_path_factory.mktemp("d"), seed, clean=clean, hints_only=False)
    read_all(log)
    asks: tuple[Callable[[], object], ...] = (lambda: log.offset_for_timestamp(NOW + 20), log.max_timestamp)
    for ask in asks:
        try:
            ask()
        except KafkaError as error:
            assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)  # noqa: PT017
    if not clean:
        check(log)
    append(log, b"more")
    log.close()


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**32))
@example(seed=2529526779)  # the last header claims millions of offsets
@example(seed=3921506783)  # the last header claims the offsets of other records
@example(seed=33119222)  # after damage, a batch claims a lower offset
@example(seed=827486763)  # a few bytes after the last batch of a sealed segment
def test_only_written_records_are_read(filled: Path, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """After a clean shutdown, the digests cover every byte, including those that no batch's own checksum covers."""
    random, directory = Random(seed), tmp_path_factory.mktemp("d")
    whole = read_all(open_log(filled, CONFIG, clean=True, recovery_point=10**6, **KNOWN))
    shutil.copytree(filled, directory, dirs_exist_ok=True)
    for path in random.sample(sorted(directory.glob("*.log")), 2):
        path.write_bytes(damaged(path.read_bytes(), random))
    log = open_log(directory, CONFIG, clean=True, recovery_point=130, **KNOWN)
    found = read_all(log)
    assert found.items() <= whole.items()
    assert log.log_end_offset <= 132
    refused = {n for n in whole for each in log.damage if each.first_offset <= n <= each.last_offset}
    assert {n for n in whole if n < log.log_end_offset} - set(found) <= refused
