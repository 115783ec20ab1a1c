"""The transaction index that a scan rebuilds: from the batches alone or, beside damage, also from the old entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.storage.damage.damaged_ranges import DamagedBytes
from parley.storage.producer_state import ProducerState
from parley.storage.transaction_index import AbortedTransaction
from parley.storage.transaction_recovery import TransactionScan
from tests.storage.producer_batches import NOW, abort, batch, commit

FOUND = AbortedTransaction(producer_id=7, first_offset=10, last_offset=12, last_stable_offset=13)
"""The transaction that ``scanned`` finds."""
LATER = AbortedTransaction(producer_id=7, first_offset=11, last_offset=12, last_stable_offset=13)
ALTERED = AbortedTransaction(producer_id=7, first_offset=2, last_offset=12, last_stable_offset=5)
OTHER_PRODUCER = AbortedTransaction(producer_id=8, first_offset=2, last_offset=12, last_stable_offset=13)
COMMITTED = AbortedTransaction(producer_id=7, first_offset=14, last_offset=15, last_stable_offset=16)
LATE = AbortedTransaction(producer_id=5, first_offset=3, last_offset=20, last_stable_offset=21)
DAMAGE = DamagedBytes(900, 1000, first_offset=19, last_offset=21, reason="a wrong checksum")


@pytest.fixture
def producers(tmp_path: Path) -> ProducerState:
    state = ProducerState(tmp_path)
    state.load(0, 0, NOW)
    return state


def scanned(producers: ProducerState, *known: AbortedTransaction) -> TransactionScan:
    """Scan an aborted transaction at 10 to 12, and a committed one at 14 and 15."""
    scan = TransactionScan(known)
    for offset, sequence in ((10, 0), (11, 1)):
        scan.note(batch(offset, sequence=sequence, transactional=True), None, producers, NOW)
    scan.note(*abort(12), producers, NOW)
    scan.note(batch(14, sequence=2, transactional=True), None, producers, NOW)
    scan.note(*commit(15), producers, NOW)
    return scan


@pytest.mark.parametrize(
    "known", [(), (FOUND,), (LATER,), (ALTERED,), (OTHER_PRODUCER,), (FOUND, COMMITTED), (FOUND, LATE)]
)
def test_intact_batches_are_sufficient(producers: ProducerState, known: tuple[AbortedTransaction, ...]) -> None:
    assert scanned(producers, *known).entries((), is_whole=True) == [FOUND]


def test_beside_damage_a_transaction_may_have_begun_earlier(producers: ProducerState) -> None:
    scan = scanned(producers, ALTERED)
    assert scan.entries((), is_whole=False) == scan.entries((DAMAGE,), is_whole=True) == [ALTERED]


def test_beside_damage_the_previous_transaction_may_have_ended_later(producers: ProducerState) -> None:
    scan = scanned(producers, LATER)
    assert scan.entries((), is_whole=False) == scan.entries((DAMAGE,), is_whole=True) == [LATER]


def test_a_transaction_whose_records_are_damaged_stays(producers: ProducerState) -> None:
    scan = TransactionScan((FOUND,))
    scan.note(*abort(12), producers, NOW)
    assert scan.entries((), is_whole=False) == [FOUND]


@pytest.mark.parametrize("known", [OTHER_PRODUCER, COMMITTED, LATE])
def test_an_entry_that_no_marker_confirms_is_removed(producers: ProducerState, known: AbortedTransaction) -> None:
    assert scanned(producers, known).entries((), is_whole=False) == [FOUND]


def test_an_entry_whose_marker_is_damaged_stays(producers: ProducerState) -> None:
    assert scanned(producers, LATE).entries((DAMAGE,), is_whole=True) == [FOUND, LATE]
