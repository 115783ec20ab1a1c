"""The journal of the tests' disks that can lose power: synced data survives, and nothing that was never written."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.system import power
from tests.system.power import Journal

SEEDS = range(20)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setattr(os, "fsync", os.fsync)  # and so put back
    monkeypatch.setattr(os, "fdatasync", os.fdatasync)
    (tmp_path / "data" / "t-0").mkdir(parents=True)
    journal = Journal(tmp_path / "journal", tmp_path / "data")
    journal.all_is_synced()
    journal.watch()
    return journal


def write(path: Path, content: bytes, *, sync: bool = True) -> None:
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file)


def sync_names(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


@pytest.mark.parametrize("seed", SEEDS)
def test_synced_data_survives_a_power_cut(journal: Journal, tmp_path: Path, seed: int) -> None:
    log = tmp_path / "data" / "t-0" / "0.log"
    write(log, b"one ")
    sync_names(log.parent)
    write(log, b"two ")
    write(log, b"three", sync=False)
    Journal(tmp_path / "journal", tmp_path / "data").cut_power(Random(seed))  # as another process
    left = log.read_bytes()
    assert left.startswith(b"one two ")
    assert b"one two three".startswith(left) or len(left) == len(b"one two three")


def test_anything_else_may_be_lost(journal: Journal, tmp_path: Path) -> None:
    found = set()
    for seed in SEEDS:
        journal.all_is_synced()
        folder = tmp_path / "data" / "t-0"
        write(folder / "new", b"content")
        write(folder / "kept", b"content", sync=False)
        sync_names(folder)
        (folder / "kept").rename(folder / "renamed")
        journal.cut_power(Random(seed))
        found |= {(path.name, path.read_bytes()) for path in folder.iterdir()}
        for path in folder.iterdir():
            path.unlink()
    assert ("new", b"content") in found
    assert {name for name, _ in found} == {"new", "kept", "renamed"}
    assert {b"", b"content"} <= {content for name, content in found if name != "new"}


def test_files_may_be_renamed_and_removed_while_their_directory_is_synced(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another thread does."""
    folder = tmp_path / "data" / "t-0"
    write(folder / "file.tmp", b"content")
    write(folder / "removed", b"content")
    real = power._names_in

    def names_in(path: Path) -> dict[str, int]:
        names = real(path)
        monkeypatch.setattr(power, "_names_in", real)
        (folder / "file.tmp").rename(folder / "file")
        (folder / "removed").unlink()
        return names

    monkeypatch.setattr(power, "_names_in", names_in)
    sync_names(folder)
    sync_names(folder)
    journal.cut_power(Random(1))
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("file", b"content")]


def test_a_file_is_synced_under_any_name(journal: Journal, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "t-0"
    with (folder / "0.log").open("wb") as file:
        file.write(b"content")
        file.flush()
        (folder / "0.log").rename(folder / "0.log.swap")
        os.fsync(file)
    sync_names(folder)
    journal.cut_power(Random(2))
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("0.log.swap", b"content")]
