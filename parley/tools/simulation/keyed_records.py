"""The records of the simulated clients, and the text that identifies each of them in a run.

A record without a key has its text as its value. The text of a record with a key is ``key/id``, or ``key/id/deleted``
if it is a tombstone; the header ``text`` has it, too, since a tombstone has no value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parley.protocol.records.record import Record

DELETED = "deleted"
_HEADER = "text"


def record_of(text: str, position: int, timestamp_ms: int) -> Record:
    """The record with this text, at a position in its batch."""
    if "/" not in text:
        return Record(position, timestamp_ms, None, text.encode())
    value = None if is_tombstone(text) else text.encode()
    return Record(position, timestamp_ms, key_of(text).encode(), value, ((_HEADER, text.encode()),))


def text_of(record: Record) -> str:
    """The text of a record, or a description of a record that no simulated client has sent."""
    if record.key is None:
        return (record.value or b"").decode()
    text = (dict(record.headers).get(_HEADER) or b"").decode()
    same = "/" in text and record_of(text, record.offset, record.timestamp) == record
    return text if same else f"an altered record: {record}"


def key_of(text: str) -> str:
    """The key in the text of a keyed record: all before the first ``/``."""
    return text.partition("/")[0]


def is_tombstone(text: str) -> bool:
    """True if the record deletes its key."""
    return text.endswith(f"/{DELETED}")


def last_of_each_key(texts: Iterable[str]) -> Mapping[str, str]:
    """The last record of each key, of records in the order of their offsets."""
    return {key_of(text): text for text in texts}
