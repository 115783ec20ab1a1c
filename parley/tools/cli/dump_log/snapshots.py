"""Dump producer snapshots and checkpoint files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from parley.storage.checkpoints import CHECKSUM, MalformedCheckpoint, decode, has_valid_checksum, verify_blank_checksum
from parley.storage.leader_epoch_cache import CHECKPOINT
from parley.storage.producer_snapshots import CorruptSnapshot, ProducerEntry, read_snapshot
from parley.tools.cli.dump_log.output import Line, problem

_FIELDS = {CHECKPOINT: ("epoch", "startOffset")}
_OF_PARTITIONS = ("topic", "partition", "offset")


def dump_producers(path: Path) -> Iterator[Line]:
    """Yield a line for each producer in a ``.snapshot`` file, or a problem if it is corrupt. Raises ``OSError`` if it
    cannot be read."""
    try:
        for entry in read_snapshot(path):
            yield _producer(entry)
    except CorruptSnapshot as error:
        yield problem(str(error))


def _producer(entry: ProducerEntry) -> Line:
    transaction = entry.transaction_first_offset
    fields = {
        "producerId": entry.producer_id,
        "producerEpoch": entry.epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": "OptionalLong.empty" if transaction < 0 else f"OptionalLong[{transaction}]",
        "lastTimestamp": entry.timestamp,
    }
    if entry.last_offset >= 0:
        # A producer of which only a transaction marker is known has no batches.
        fields |= {
            "firstSequence": (entry.last_sequence - entry.offset_delta) & 0x7FFF_FFFF
            if entry.last_sequence >= 0
            else -1,
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
            "timestamp": entry.timestamp,
        }
    text = " ".join(f"{name}: {value}" for name, value in fields.items())
    return Line(text, {**fields, "currentTxnFirstOffset": None if transaction < 0 else transaction})


def dump_checkpoint(path: Path) -> Iterator[Line]:
    """Yield lines for the entries of a checkpoint file (leader epochs with start offsets, or partitions with offsets),
    whether its checksum is valid, and its problems. Raises ``OSError`` if it cannot be read."""
    names = _FIELDS.get(path.name, _OF_PARTITIONS)
    data = path.read_bytes()
    try:
        for number, words in enumerate(decode(data, list), 3):
            if words[:1] == [CHECKSUM]:
                checksum = {"crc": words[-1], "isvalid": has_valid_checksum(data)}
                yield Line(f"crc: {checksum['crc']} isvalid: {str(checksum['isvalid']).lower()}", checksum)
                continue
            if len(words) != len(names) or not all(word.isdecimal() for word in words[-2:]):
                yield problem(f"line {number}: {' '.join(words)[:80]!r} is not {', '.join(names)}", line=number)
                continue
            numbers = [word if name == "topic" else int(word) for name, word in zip(names, words, strict=True)]
            fields = dict(zip(names, numbers, strict=True))
            yield Line(" ".join(f"{name}: {value}" for name, value in fields.items()), fields)
        verify_blank_checksum(data)
    except MalformedCheckpoint as error:
        yield problem(str(error))
