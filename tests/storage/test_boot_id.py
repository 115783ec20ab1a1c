"""The id of the machine's boot in a log directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.storage import boot_id
from parley.storage.boot_id import BOOT_FILE, is_same_boot, note_boot


def test_a_directory_knows_the_boot_in_which_it_was_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = tmp_path / "current"
    monkeypatch.setattr(boot_id, "_CURRENT", current)
    note_boot(tmp_path)
    assert not is_same_boot(tmp_path)
    assert not (tmp_path / BOOT_FILE).exists()
    for boot in ("first\n", "second\n"):
        current.write_text(boot)
        assert not is_same_boot(tmp_path)
        note_boot(tmp_path)
        assert is_same_boot(tmp_path)


def test_a_directory_of_that_name_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / BOOT_FILE).mkdir()
    note_boot(tmp_path)
    assert not is_same_boot(tmp_path)
    assert f"ignoring {tmp_path / BOOT_FILE}" in caplog.text
