"""The data directories remember the coordination stores that they have belonged to."""

from __future__ import annotations

from pathlib import Path

from parley.broker.membership.known_stores import STORE_FILE, read_known_stores, record_store


def test_directories_remember_every_store_they_have_belonged_to(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    assert read_known_stores([first, second, tmp_path / "missing"]) == []
    record_store([first, second], "a")
    record_store([second], "b")  # the first one was away
    assert read_known_stores([first, second]) == ["b", "a"]
    record_store([first, second], "b")
    assert (first / STORE_FILE).read_text() == "b\na\n"
    record_store([first, second], "a")
    assert read_known_stores([first]) == ["a", "b"]
    record_store([first, tmp_path / "missing"], "c")
    assert not (tmp_path / "missing").exists()
