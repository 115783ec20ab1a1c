"""The records of the simulated clients, and the text that identifies each of them in a run.

The text of a record without a key is its value. The text of a record with a key is ``key/id``, or ``key/id/deleted`` if
it is a tombstone. It is also in the header ``text``, because a tombstone has no value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parley.protocol.records.record import Record

DELETED = "deleted"
_HEADER = "text"


def record_of(text: str, position: int, timestamp_ms: int) -> Record:
    """Return the record with this text, at a position in its batch."""
    if "/" not in text:
        return Record(position, timestamp_ms, None, text.encode())
    value = None if is_tombstone(text) else text.encode()
    return Record(position, timestamp_ms, key_of(text).encode(), value, ((_HEADER, text.encode()),))


def text_of(record: Record) -> str:
    """Return the text of a record, or a description of a record that no simulated client has sent."""
    if record.key is None:
        return (record.value or b"").decode()
    text = (dict(record.headers).get(_HEADER) or b"").decode()
    same = "/" in text and record_of(text, record.offset, record.timestamp) == record
    return text if same else f"an altered record: {record}"


def key_of(text: str) -> str:
    """Return the key in the text of a keyed record: the part before the first ``/``."""
    return text.partition("/")[0]


def is_tombstone(text: str) -> bool:
    """Return True if the record deletes its key."""
    return text.endswith(f"/{DELETED}")


def last_of_each_key(texts: Iterable[str]) -> Mapping[str, str]:
    """Return the last of these texts for each key. They must be in offset order."""
    return {key_of(text): text for text in texts}
