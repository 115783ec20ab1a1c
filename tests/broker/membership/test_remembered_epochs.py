"""The epochs and ids that a broker has seen and remembers on disk."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from parley.broker.membership import remembered_epochs
from parley.broker.membership.remembered_epochs import (
    EPOCHS_FILE,
    EpochFile,
    RememberedEpochs,
    highest_leader_epoch,
    read_remembered_epochs,
)
from parley.broker.metadata.changes import Delta, PartitionChanged, PartitionsAdded, TopicCreated, TopicDeleted
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import Term
from parley.broker.metadata.types import PartitionState, TopicImage
from parley.protocol.uuids import UUID
from tests.support.flipped_bits import each_bit_flipped


def test_each_field_only_rises() -> None:
    one = RememberedEpochs(Term(5, 1, 9), 3, 1000, 6)
    assert one.raised_to(RememberedEpochs(Term(4, 2, 99), 4, 0, 7)) == RememberedEpochs(Term(5, 1, 9), 4, 1000, 7)
    assert one.raised_to(RememberedEpochs(Term(5, 1, 10))) == RememberedEpochs(Term(5, 1, 10), 3, 1000, 6)
    assert RememberedEpochs.from_bytes(one.to_bytes()) == one


def test_a_file_of_an_earlier_version_has_no_leader_epoch() -> None:
    fields = json.loads(RememberedEpochs(Term(5, 1, 9), 3, 1000, 6).to_bytes())
    del fields["leader_epoch"], fields["crc32c"]
    assert RememberedEpochs.from_bytes(json.dumps(fields).encode()) == RememberedEpochs(Term(5, 1, 9), 3, 1000)


def test_the_highest_leader_epoch_of_a_change_of_the_metadata() -> None:
    low, high = (PartitionState((1,), (1,), 1, leader_epoch=epoch) for epoch in (3, 8))
    topic = TopicImage("t", UUID(int=1), (low, high))
    assert highest_leader_epoch(Delta(1, 1, (TopicCreated(topic), PartitionChanged("u", 0, low)))) == 8
    assert highest_leader_epoch(Delta(1, 1, (PartitionsAdded("t", (high, low)),))) == 8
    assert highest_leader_epoch(Delta(1, 1, (TopicDeleted("t", topic.topic_id),))) == -1


async def test_every_directory_gets_the_file_and_any_of_them_is_enough(tmp_path: Path) -> None:
    first, second, missing = tmp_path / "first", tmp_path / "second", tmp_path / "missing"
    first.mkdir()
    second.mkdir()
    assert read_remembered_epochs([first, second, missing]) == RememberedEpochs()
    epochs = EpochFile([first, second, missing], RememberedEpochs())
    image = MetadataImage("c", controller_id=2, controller_epoch=7, version=31)
    epochs.note_image(Delta(7, 31, (PartitionChanged("t", 0, PartitionState((1,), (1,), 1, leader_epoch=4)),)), image)
    epochs.note(RememberedEpochs(broker_epoch=12))
    await epochs.save()
    (first / EPOCHS_FILE).unlink()
    assert read_remembered_epochs([first, second, missing]) == RememberedEpochs(Term(7, 2, 31), 12, leader_epoch=4)
    assert not missing.exists()


async def test_a_change_is_written_at_once(tmp_path: Path) -> None:
    changed = EpochFile([tmp_path], RememberedEpochs())
    running = asyncio.ensure_future(changed.run())
    for version in range(3):
        changed.note(RememberedEpochs(Term(1, 1, version)))
        await written(tmp_path, changed.known)
    running.cancel()


async def written(directory: Path, known: RememberedEpochs) -> None:
    """Wait until the file has these epochs, or the test times out."""
    while read_remembered_epochs([directory]) != known:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "text",
    [
        '{"controller_epoch": 7}',
        "[" * 100_000,
        *(
            RememberedEpochs(Term(7, 1, 5), 3, 0).to_bytes().decode().replace(": 7", f": {wrong}")
            for wrong in (2**31 - 1, "1e300", "Infinity", "true.", -2)
        ),
        RememberedEpochs(Term(7, 1, 5), 2**63, 0).to_bytes().decode(),
        RememberedEpochs(Term(7, 1, 5), 3, 2**63 - 1).to_bytes().decode(),
        RememberedEpochs(Term(7, 1, 5), 3, 0, 2**31 - 1).to_bytes().decode(),
    ],
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    (tmp_path / EPOCHS_FILE).write_text(text)
    with caplog.at_level(logging.WARNING):
        assert read_remembered_epochs([tmp_path]) == RememberedEpochs()
    assert "a file of known epochs is damaged" in caplog.text


def test_a_flipped_bit_is_never_read_as_other_epochs(tmp_path: Path) -> None:
    known = RememberedEpochs(Term(7, 1, 5), 3, 1000, 12)
    for altered in each_bit_flipped(known.to_bytes()):
        (tmp_path / EPOCHS_FILE).write_bytes(altered)
        assert read_remembered_epochs([tmp_path]) in (known, RememberedEpochs()), altered


async def test_epochs_that_no_directory_takes_are_not_called_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    epochs = EpochFile([folder], RememberedEpochs())
    epochs.note(RememberedEpochs(broker_epoch=12))
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            await epochs.save()
    await epochs.close()
    assert "no data directory can store the epochs" in caplog.text
    folder.mkdir()
    await epochs.save()
    assert read_remembered_epochs([folder]) == RememberedEpochs(broker_epoch=12)


async def test_epochs_are_written_again_after_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed sync may have dropped what was written, and the next one would succeed all the same."""

    def failing(directory: Path) -> None:
        (directory / EPOCHS_FILE).unlink()
        raise OSError("input/output error")

    epochs = EpochFile([tmp_path], RememberedEpochs())
    epochs.note(RememberedEpochs(broker_epoch=12))
    with monkeypatch.context() as patched:
        patched.setattr(remembered_epochs, "_sync", failing)
        with pytest.raises(OSError, match="input/output error"):
            await epochs.save()
    await epochs.save()
    assert read_remembered_epochs([tmp_path]) == RememberedEpochs(broker_epoch=12)


async def test_epochs_that_no_directory_can_store_are_logged_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remembered_epochs, "RETRY_S", 0.001)
    folder = tmp_path / "folder"
    epochs = EpochFile([folder], RememberedEpochs())
    running = asyncio.ensure_future(epochs.run())
    epochs.note(RememberedEpochs(broker_epoch=12))
    while "no data directory can store the epochs" not in caplog.text:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    folder.mkdir()
    await written(folder, RememberedEpochs(broker_epoch=12))
    running.cancel()
