"""The data directories remember the coordination stores that they have belonged to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from parley.broker.membership.known_stores import STORE_FILE, read_known_stores, record_store, with_advice
from parley.consensus.errors import DamagedStore, EmptyStore, WrongStore
from parley.storage.meta_properties import MalformedIdentity
from tests.support.flipped_bits import each_bit_flipped


def test_directories_remember_every_store_they_have_belonged_to(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    assert read_known_stores([first, second, tmp_path / "missing"]) == []
    record_store([first, second], "a")
    record_store([second], "b")  # the first directory was missing
    assert read_known_stores([first, second]) == ["b", "a"]
    record_store([first, second], "b")
    assert (first / STORE_FILE).read_text().split() == ["b", "a"]
    record_store([first, second], "a")
    assert read_known_stores([first]) == ["a", "b"]
    record_store([first, tmp_path / "missing"], "c")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("damage", [bytes(range(128, 200)), b"\0" * 40, b"abc\x00def\n"])
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path, damage: bytes) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    record_store([first, second], "a")
    (first / STORE_FILE).write_bytes(damage)
    assert read_known_stores([first, second]) == ["a"]
    with pytest.raises(MalformedIdentity) as malformed:
        read_known_stores([first])
    assert str(first / STORE_FILE) in str(malformed.value)
    assert "remove the file" in str(malformed.value)
    record_store([first, second], "a")
    assert read_known_stores([first]) == ["a"]


def test_a_flipped_bit_is_never_read_as_another_store(tmp_path: Path) -> None:
    for each in ("aa56f1", "23326f"):
        record_store([tmp_path], each)
    path = tmp_path / STORE_FILE
    for altered in each_bit_flipped(path.read_bytes()):
        path.write_bytes(altered)
        with suppress(MalformedIdentity):
            assert read_known_stores([tmp_path])[:2] == ["23326f", "aa56f1"], altered


def test_a_file_of_an_older_version_gets_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    path.write_text("b\na\n")
    assert read_known_stores([tmp_path]) == ["b", "a"]
    record_store([tmp_path], "b")
    path.write_bytes(path.read_bytes().replace(b"b", b"c"))
    with pytest.raises(MalformedIdentity, match="is damaged"):
        read_known_stores([tmp_path])


def test_the_advice_distinguishes_a_wiped_store_from_another_one(tmp_path: Path) -> None:
    wiped = str(with_advice(EmptyStore("nothing"), [tmp_path]))
    damaged = str(with_advice(DamagedStore("store.db: file is not a database"), [tmp_path]))
    assert damaged.startswith("store.db: file is not a database. Stop all brokers")
    assert "restore the store from a backup" in damaged
    assert "wiped" not in damaged
    other = str(with_advice(WrongStore("expected a, found b", found="b"), [tmp_path]))
    assert "the store is empty" in wiped
    assert "Restore the store from a backup" in wiped
    assert f"found b: {tmp_path} belongs to another coordination store" in other
    assert "Correct the address of the store" in other
    assert all(str(tmp_path / STORE_FILE) in text for text in (wiped, other))
