"""The transaction index: Kafka's 34-byte entries, lookup by range, truncation and damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from parley.storage.transaction_index import AbortedTransaction, CorruptTransactionIndex, TransactionIndex

ENTRIES = [
    AbortedTransaction(1, 100, 109, 105),
    AbortedTransaction(2, 105, 119, 120),
    AbortedTransaction(1, 121, 130, 131),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000100.txnindex"


@pytest.fixture
def index(path: Path) -> TransactionIndex:
    index = TransactionIndex(path)
    for entry in ENTRIES:
        index.append(entry)
    return index


def test_the_format_is_kafkas(index: TransactionIndex, path: Path) -> None:
    data = path.read_bytes()
    assert len(data) == 3 * 34
    numbers = [int.from_bytes(data[2 + at * 8 : 10 + at * 8], "big") for at in range(4)]
    assert (data[:2], numbers) == (b"\0\0", [1, 100, 109, 105])


def test_no_abort_no_file(path: Path) -> None:
    index = TransactionIndex(path)
    assert index.find(0, 1000) == ([], False)
    index.sanity_check()
    index.truncate_to(0)
    index.reset()
    index.flush()
    index.delete()
    assert not path.exists()


def test_transactions_are_found_by_range(index: TransactionIndex) -> None:
    assert index.find(100, 104) == (ENTRIES[:1], True)
    assert index.find(100, 106) == (ENTRIES[:2], True)
    assert index.find(110, 200) == (ENTRIES[1:], False)
    assert index.find(131, 200) == ([], False)
    assert index.find(130, 131) == (ENTRIES[2:], True)


def test_markers_come_in_order(index: TransactionIndex) -> None:
    with pytest.raises(ValueError, match="does not come after"):
        index.append(AbortedTransaction(3, 122, 130, 131))


def test_truncation_drops_the_markers_behind(index: TransactionIndex, path: Path) -> None:
    index.truncate_to(131)
    assert index.count == 3
    index.truncate_to(119)
    assert index.find(0, 1000) == (ENTRIES[:1], False)
    assert path.stat().st_size == 34
    index.append(ENTRIES[1])
    index.reset()
    assert index.count == 0
    index.append(ENTRIES[0])
    assert index.find(0, 1000) == (ENTRIES[:1], False)


def test_it_is_read_again_after_a_restart(index: TransactionIndex, path: Path) -> None:
    index.flush()
    index.close()
    again = TransactionIndex(path)
    again.sanity_check()
    assert again.find(0, 1000)[0] == ENTRIES
    with pytest.raises(ValueError, match="does not come after"):
        again.append(ENTRIES[2])


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\0\1" + data[2:],
        lambda data: data[34:] + data[:34],
        lambda data: data[:10] + (300).to_bytes(8, "big") + data[18:],
        lambda data: data[:18] + (99).to_bytes(8, "big") + data[26:],
    ],
    ids=["cut", "longer", "version", "order", "ends before it begins", "not of this segment"],
)
def test_damage_is_noticed(index: TransactionIndex, path: Path, damage: object) -> None:
    index.close()
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    again = TransactionIndex(path)
    with pytest.raises(CorruptTransactionIndex):
        again.sanity_check()
    again.reset()
    again.sanity_check()


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 5)), max_size=50).map(
        lambda gaps: gaps if len(gaps) < 30 else gaps * 40
    ),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 400)), min_size=1, max_size=6),
)
def test_searches_find_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[tuple[int, int]], searches: list[tuple[int, int, int]]
) -> None:
    """Each search begins near the previous one. In between, the index is truncated, or entries are appended."""
    index = TransactionIndex(tmp_path_factory.mktemp("index") / "00000000000000000000.txnindex")
    entries: list[AbortedTransaction] = []

    def append(gaps: list[tuple[int, int]]) -> None:
        last = entries[-1].last_offset if entries else 0
        stable = max((entry.last_stable_offset for entry in entries), default=0)
        spans = []
        for length, gap in gaps:
            last += gap
            spans.append((max(stable, last - length), last))
        firsts = [first for first, _ in spans]
        for at, (first, last) in enumerate(spans):
            entries.append(AbortedTransaction(7, first, last, min([last + 1, *firsts[at + 1 : at + 10]])))
            index.append(entries[-1])

    append(gaps)
    for start, end, cut in searches:
        found, complete = index.find(start, end)
        assert found == [entry for entry in entries if entry.last_offset >= start and entry.first_offset < end]
        assert complete == any(entry.last_stable_offset >= end and entry.last_offset >= start for entry in entries)
        if cut < 300:
            index.truncate_to(cut)
            entries[:] = [entry for entry in entries if entry.last_offset < cut]
            append(gaps[: cut % 7])
    index.delete()


@pytest.mark.parametrize("entries", [ENTRIES, ENTRIES[1:], [], [*ENTRIES[:2], AbortedTransaction(3, 125, 126, 127)]])
def test_all_entries_may_be_replaced(index: TransactionIndex, path: Path, entries: list[AbortedTransaction]) -> None:
    index.rewrite(entries)
    again = TransactionIndex(path)
    assert index.entries() == again.entries() == entries
    assert (index.count, index.last_offset, index.checksum()) == (again.count, again.last_offset, again.checksum())
    index.append(AbortedTransaction(4, 140, 141, 142))
    assert len(TransactionIndex(path).entries()) == len(entries) + 1


def test_no_entries_need_no_file(path: Path) -> None:
    TransactionIndex(path).rewrite([])
    assert not path.exists()


def test_the_checksum_is_that_of_all_entries(index: TransactionIndex, path: Path) -> None:
    assert index.checksum() == crc32c(path.read_bytes()) == TransactionIndex(path).checksum()
    index.truncate_to(119)
    assert index.checksum() == crc32c(path.read_bytes())
    index.append(ENTRIES[1])
    assert index.checksum() == crc32c(path.read_bytes())
    index.reset()
    assert index.checksum() == TransactionIndex(path.with_name("1.txnindex")).checksum() == 0
