"""The id of the machine's boot in a log directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.storage import boot_id
from parley.storage.boot_id import BOOT_FILE, note_boot


def test_a_directory_knows_the_boot_in_which_it_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = tmp_path / "current"
    monkeypatch.setattr(boot_id, "_CURRENT", current)
    assert not note_boot(tmp_path)
    assert not (tmp_path / BOOT_FILE).exists()
    current.write_text("first\n")
    assert [note_boot(tmp_path), note_boot(tmp_path)] == [False, True]
    current.write_text("second\n")
    assert [note_boot(tmp_path), note_boot(tmp_path)] == [False, True]


def test_a_directory_of_that_name_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / BOOT_FILE).mkdir()
    assert not note_boot(tmp_path)
    assert f"ignoring {tmp_path / BOOT_FILE}" in caplog.text
