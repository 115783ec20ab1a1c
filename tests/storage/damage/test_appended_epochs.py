"""The file of the leader epochs in which batches were appended: when it proves that an epoch is wrong, and when it
cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.protocol.records.batch_header import BatchHeader
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.damage.appended_epochs import APPENDED_EPOCHS, RUNS_MAX, AppendedEpochs
from parley.storage.leader_epoch_cache import EpochStart


def batch(offset: int, epoch: int, magic: int = 2) -> BatchHeader:
    return BatchHeader(offset, 88, epoch, magic, 0, 0, 0, 0, 0, -1, -1, -1, 1)


def known_at(epochs: AppendedEpochs, *offsets: int) -> list[int | None]:
    """Return the epoch at each offset, found by trying several; None if every epoch is accepted."""
    tried = [
        [epoch for epoch in range(10) if epochs.is_honest(batch(offset, epoch), ()) is not False] for offset in offsets
    ]
    return [found[0] if len(found) == 1 else None for found in tried]


@pytest.fixture
def epochs(tmp_path: Path) -> AppendedEpochs:
    """Epoch 3 from offset 10 on, epoch 5 from offset 20 on."""
    epochs = AppendedEpochs(tmp_path / APPENDED_EPOCHS)
    for offset in range(10, 30):
        epochs.note(3 if offset < 20 else 5, offset)
    return epochs


def reopened(epochs: AppendedEpochs) -> AppendedEpochs:
    return AppendedEpochs.open(epochs.path, same_boot=True)


def test_it_knows_the_epoch_of_each_batch_since_it_began(epochs: AppendedEpochs) -> None:
    for each in (epochs, reopened(epochs)):
        assert known_at(each, 9, 10, 19, 20, 29) == [None, 3, 3, 5, 5]
        assert each.is_honest(batch(25, 5), ()) is True
        assert each.is_honest(batch(25, 4), ()) is False
        assert each.is_honest(batch(9, 4), ()) is None


def test_it_is_written_once_for_each_epoch(epochs: AppendedEpochs) -> None:
    epochs.path.unlink()
    epochs.note(5, 30)
    assert not epochs.path.exists()
    epochs.note(6, 31)
    assert known_at(reopened(epochs), 30, 31) == [5, 6]


def test_a_batch_without_an_epoch_is_not_judged(epochs: AppendedEpochs) -> None:
    epochs.note(NO_EPOCH, 30)
    assert known_at(epochs, 30) == [5]
    assert epochs.is_honest(batch(25, NO_EPOCH), ()) is None
    assert epochs.is_honest(batch(25, 77, magic=1), ()) is None


def test_epochs_that_apache_kafka_recorded_are_accepted(epochs: AppendedEpochs) -> None:
    noted = (EpochStart(3, 0), EpochStart(8, 25))
    assert epochs.is_honest(batch(24, 8), noted) is False
    assert epochs.is_honest(batch(25, 8), noted) is True
    assert epochs.is_honest(batch(25, 5), noted) is True


def test_after_a_truncation_an_older_epoch_may_go_on(epochs: AppendedEpochs) -> None:
    epochs.truncate_from_end(15)
    epochs.note(3, 15)
    epochs.note(4, 28)
    for each in (epochs, reopened(epochs)):
        assert known_at(each, 14, 20, 27, 28) == [3, 3, 3, 4]


def test_an_append_that_failed_leaves_no_epoch_behind(epochs: AppendedEpochs) -> None:
    epochs.note(6, 30)  # not appended
    epochs.note(5, 30)
    assert known_at(epochs, 30, 31) == [5, 5]
    epochs.note(6, 31)
    epochs.note(7, 31)
    for each in (epochs, reopened(epochs)):
        assert known_at(each, 30, 31) == [5, 7]


def test_epochs_of_another_leader_may_be_lower(epochs: AppendedEpochs) -> None:
    """A follower can copy such a log from Apache Kafka."""
    epochs.note(2, 30)
    assert known_at(reopened(epochs), 29, 30) == [5, 2]


def test_nothing_is_known_after_the_machine_restarted(epochs: AppendedEpochs) -> None:
    assert known_at(AppendedEpochs.open(epochs.path, same_boot=False), 15) == [None]
    assert not epochs.path.exists()


@pytest.mark.parametrize("content", [b"", b"abc", b"\0" * 17])
def test_a_malformed_file_is_ignored(epochs: AppendedEpochs, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    epochs.path.write_bytes(content)
    assert known_at(reopened(epochs), 15) == [None]
    assert "malformed" in caplog.text


def test_no_single_altered_byte_makes_honest_epochs_altered(epochs: AppendedEpochs) -> None:
    intact = epochs.path.read_bytes()
    for at in range(len(intact)):
        data = bytearray(intact)
        data[at] ^= 1 << at % 8
        epochs.path.write_bytes(data)
        assert known_at(reopened(epochs), 15, 25) == [None, None]


def test_old_epochs_are_forgotten(tmp_path: Path) -> None:
    epochs = AppendedEpochs(tmp_path / APPENDED_EPOCHS)
    for offset in range(2 * RUNS_MAX):
        epochs.note(offset % 10, offset)
    assert known_at(epochs, RUNS_MAX - 1, RUNS_MAX) == [None, RUNS_MAX % 10]
    assert epochs.path.stat().st_size < 16 * RUNS_MAX
