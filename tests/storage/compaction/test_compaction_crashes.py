"""Compaction interrupted at every step that renames, removes or syncs a file: the log stays intact."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parley.protocol.records.batch import build
from parley.protocol.records.control_batch import ControlType
from parley.protocol.records.record import Record
from parley.storage import checkpoints, swap_recovery
from parley.storage.checkpoints import sync_directory
from parley.storage.compaction import compacted_segments, segment_replacement
from parley.storage.log import Log
from parley.tools.simulation.disk import Disk, Disks
from tests.storage.compaction.compactions import committed, compacted, end_transaction, settled, table
from tests.storage.logs import NOW, SMALL, check_segment, open_log
from tests.support.faulty_files import only_below

CONFIG = replace(SMALL, segment_bytes=700, cleanup_policy=frozenset({"compact"}), delete_retention_ms=0)


class Interrupted(BaseException):
    """Ends the simulated process."""


@contextmanager
def interrupted_at(step: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interrupt the block before its call number ``step`` that renames, removes or syncs something below the folder."""
    calls = count()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) >= step:
                raise Interrupted
            return function(*args, **kwargs)

        return only_below(folder, call, function)

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        for module in (segment_replacement, compacted_segments, swap_recovery):
            patch.setattr(module, "sync_directory", counted(checkpoints.sync_directory))
        yield


def fill(log: Log, rng: Random) -> None:
    """Fill several segments with values, tombstones, and transactions of both outcomes."""
    for n in range(rng.randint(8, 11)):
        fields: dict[str, Any] = {}
        producer_id = log.log_end_offset
        if n % 4 == 2:
            fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        records = [
            Record(
                0,
                NOW + n,
                rng.choice((b"a", b"b", b"c", b"d%d" % rng.randrange(n + 1))),
                rng.choice((b"v" * 80, b"%d" % n, None)),
            )
            for _ in range(rng.randint(1, 3))
        ]
        log.append_as_leader(build(records, **fields), leader_epoch=0, now_ms=NOW)
        if fields:
            end_transaction(log, producer_id, 0, rng.choice((ControlType.COMMIT, ControlType.ABORT)))
    settled(log)


def opened(directory: Path, log: Log) -> Log:
    """Open the log in ``directory`` again, after the end of the process that wrote it."""
    log.release()
    known = {"recovery_point": log.recovery_point, "cleaned_up_to": log.cleaned_up_to, "knows_log_start": True}
    return settled(open_log(directory, CONFIG, **known))


def check_log(log: Log, expected: dict[bytes, bytes], history: dict[int, Record], end: int) -> None:
    assert log.log_end_offset == end
    assert table(log) == expected
    assert all(history[record.offset] == record for _, record in committed(log))
    assert not log.damage
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        assert segment.end_offset == following.base_offset
        check_segment(segment)
    assert not [path for path in log.directory.iterdir() if path.suffix in (".cleaned", ".swap")]


def rounds(
    directory: Callable[[], Path], after: Callable[[], Path], rng: Random, patch: pytest.MonkeyPatch, stride: int = 1
) -> int:
    """Interrupt compactions at every step, or every ``stride``-th, until no step is left. Returns the number of
    interrupted compactions."""
    for step in count(rng.randrange(stride), stride):
        log = open_log(directory(), CONFIG)
        fill(log, rng)
        expected, end = table(log), log.log_end_offset
        history = {record.offset: record for _, record in committed(log)}
        compacted(log, now_ms=NOW)  # now some segments are clean, and tombstones have delete horizons
        fill(log, rng)
        expected, end = table(log), log.log_end_offset
        history |= {record.offset: record for _, record in committed(log)}
        done = False
        try:
            with interrupted_at(step, log.directory, patch):
                compacted(log, now_ms=NOW + 1)
                done = True
        except Interrupted:
            pass
        log = opened(after(), log)
        check_log(log, expected, history, end)
        compacted(log, now_ms=NOW + 1)
        check_log(log, expected, history, end)
        log.release()
        if done:
            return step
    raise AssertionError


@pytest.mark.slow
def test_a_process_that_ends_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    folders = count()
    current = tmp_path

    def new() -> Path:
        nonlocal current
        current = tmp_path / str(next(folders))
        current.mkdir()
        return current

    assert rounds(new, lambda: current, Random(1), monkeypatch) > 50


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, *range(10, 40)))])
@pytest.mark.slow
def test_a_power_cut_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = Random(seed)
    with Disks(tmp_path) as disks:
        machines = count()
        disk: Disk

        def new() -> Path:
            nonlocal disk
            disk = disks.disk(f"machine-{next(machines)}")
            folder = disk.path / "topic-0"
            folder.mkdir()
            sync_directory(disk.path)
            return folder

        def after() -> Path:
            disk.machine_crashed(rng)
            try:  # the machine loses power again while it recovers
                with interrupted_at(rng.randrange(20), disk.path, monkeypatch):
                    swap_recovery.settle(disk.path / "topic-0")
            except Interrupted:
                disk.machine_crashed(rng)
            return disk.path / "topic-0"

        assert rounds(new, after, rng, monkeypatch, stride=7) > 50
