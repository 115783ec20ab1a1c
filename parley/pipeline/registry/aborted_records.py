"""The records that a new writer writes to correct those of aborted transactions: a function of the state, without I/O.

Readers that do not skip aborted transactions have applied such a record. They need the valid value of its key. Two
kinds of records change other keys too:

1. A DELETE_SUBJECT record deletes versions softly, but the versions' own records do not show it: they are written again
as deleted.
2. An aborted DELETE_SUBJECT record has deleted versions for such readers. It is replaced by a record for version 0,
   which deletes nothing, followed by all versions of the subject. A tombstone is not possible, because Confluent's
   registry fails on it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from parley.pipeline.registry.state import Record, State, Version, deletion_key, version_key
from parley.pipeline.values.json_text import packed


def records_again(aborted: Collection[bytes], values: Mapping[bytes, bytes | None], state: State) -> list[Record]:
    """Return the records to write for the keys that aborted transactions have written. ``values`` contains the valid
    value of each key.
    """
    made: dict[bytes, bytes | None] = {}
    others: list[bytes] = []
    for key in sorted(aborted):
        subject = _named(key, "DELETE_SUBJECT")
        if subject is None or key != deletion_key(subject):
            others.append(key)
            continue
        made[key] = packed({"subject": subject, "version": 0})
        made.update(_record(one, values) for one in state.versions(subject, deleted=True))
    for key in others:
        made.setdefault(key, _value(key, values, state))
    return list(made.items())


def _value(key: bytes, values: Mapping[bytes, bytes | None], state: State) -> bytes | None:
    subject = _named(key, "SCHEMA")
    for one in state.versions(subject, deleted=True) if subject is not None else ():
        if version_key(one.subject, one.version) == key:
            return _record(one, values)[1]
    return values.get(key)


def _record(one: Version, values: Mapping[bytes, bytes | None]) -> Record:
    """Return the record of a version. A version that is not deleted keeps its record's value, which another registry
    may have written.
    """
    key, made = one.record(deleted=one.is_deleted)
    return key, made if one.is_deleted else values.get(key) or made


def _named(key: bytes, kind: str) -> str | None:
    """Return the subject in a key of this kind; None for a key of another kind."""
    try:
        named = json.loads(key)
        found = named["subject"] if named["keytype"] == kind else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None
