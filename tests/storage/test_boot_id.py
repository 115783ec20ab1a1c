"""The id of the machine's boot in a log directory."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from parley.storage import boot_id
from parley.storage.boot_id import BOOT_FILE, is_same_boot, note_boot, was_recovered
from parley.tools.simulation.disk import Disks


def test_a_directory_knows_the_boot_in_which_it_was_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = tmp_path / "current"
    monkeypatch.setattr(boot_id, "_CURRENT", current)
    assert not was_recovered(tmp_path)
    note_boot(tmp_path)
    assert not is_same_boot(tmp_path)
    assert was_recovered(tmp_path)
    for boot in ("first\n", "second\n"):
        current.write_text(boot)
        assert not is_same_boot(tmp_path)
        note_boot(tmp_path)
        assert is_same_boot(tmp_path)


def test_a_directory_of_that_name_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / BOOT_FILE).mkdir()
    note_boot(tmp_path)
    assert was_recovered(tmp_path)
    assert not is_same_boot(tmp_path)
    assert f"ignoring {tmp_path / BOOT_FILE}" in caplog.text


def test_a_crash_of_the_machine_leaves_the_first_file(tmp_path: Path) -> None:
    """It is synced: without it, the logs count as Kafka's."""
    with Disks(tmp_path) as disks:
        for seed in range(10):
            disk = disks.disk(f"host {seed}")
            note_boot(disk.path)
            note_boot(disk.path)
            disk.machine_crashed(Random(seed))
            assert was_recovered(disk.path)
            assert not is_same_boot(disk.path)
