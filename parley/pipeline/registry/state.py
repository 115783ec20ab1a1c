"""The registry's state, computed from the records of its topic, which are in Confluent's format.

Rules:

1. Only ``State.apply`` changes the state, with each record of the topic in order.
2. Keys are compact JSON with the fields in Confluent's order, because compaction compares bytes.
3. A record without a value removes the earlier ones with its key. Records that cannot be read, and kinds of records
   that this registry does not know, are skipped with a warning and stay in the topic.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from parley.pipeline.schemas.model import BadSchema, Reference, Schema
from parley.pipeline.values.json_text import packed

INT32_MAX: Final = 0x7FFF_FFFF
Record = tuple[bytes, bytes | None]
_IGNORED: Final = ("NOOP",)
_OF_SUBJECTS: Final = ("SCHEMA", "DELETE_SUBJECT")
_OF_SCHEMA: Final = ("subject", "version", "id", "schemaType", "references", "schema", "deleted")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject: its number, and its schema with the schema's id."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool = False
    """True if the version is softly deleted. Its id can still be read."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the record that this registry does not use: metadata and rules, kept unchanged."""

    def as_json(self) -> dict[str, Any]:
        """Return the version in the API's form."""
        made = {"subject": self.subject, "version": self.version, "id": self.id, **self.schema.as_json()}
        return {**made, **{key: value for key, value in self.others.items() if key in ("metadata", "ruleSet")}}

    def record(self, *, deleted: bool = False) -> Record:
        """Return the version's record in the topic. With ``deleted``, the record marks the version as
        softly deleted.
        """
        own = {"subject": self.subject, "version": self.version, "id": self.id, **self.others}
        return version_key(self.subject, self.version), packed({**own, **self.schema.as_json(), "deleted": deleted})


def version_key(subject: str, version: int) -> bytes:
    """Return the key of a version's record."""
    return packed({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def config_key(subject: str | None) -> bytes:
    """Return the key of a subject's configuration; None means the global one."""
    return _key("CONFIG", subject)


def mode_key(subject: str | None) -> bytes:
    """Return the key of a subject's mode; None means the global one."""
    return _key("MODE", subject)


def deletion_key(subject: str) -> bytes:
    """Return the key of the record that softly deletes a subject."""
    return _key("DELETE_SUBJECT", subject)


def _key(kind: str, subject: str | None) -> bytes:
    named = {} if subject is None else {"subject": subject}
    return packed({"keytype": kind, **named, "magic": 0})


class State:
    """The subjects with their versions, the schemas by id, the configurations and the modes."""

    def __init__(self) -> None:
        self.configs: dict[str | None, Mapping[str, Any]] = {}
        self.modes: dict[str | None, str] = {}
        self.id_max = 0
        self._subjects: dict[str, dict[int, Version]] = {}
        self._by_id: dict[int, dict[tuple[str, int], Version]] = {}
        self._ids: dict[Schema, int] = {}

    # Queries.

    def subjects(self) -> list[str]:
        """Return all subjects in order, including those whose versions are all deleted."""
        return sorted(self._subjects)

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """Return the versions of a subject in order; with ``deleted``, also those that are softly deleted."""
        found = list(self._subjects.get(subject, {}).values())
        return sorted((one for one in found if deleted or not one.is_deleted), key=lambda one: one.version)

    def version(self, subject: str, version: int) -> Version | None:
        """Return a version of a subject, even if it is softly deleted; None if there is no such version."""
        return self._subjects.get(subject, {}).get(version)

    def with_id(self, number: int) -> list[Version]:
        """Return all versions with this id, including softly deleted ones."""
        return sorted(self._by_id.get(number, {}).values(), key=lambda one: (one.subject, one.version))

    def id_of(self, schema: Schema) -> int | None:
        """Return the id of a schema, under any subject; None if it has none."""
        return self._ids.get(schema)

    def load(self, reference: Reference) -> Schema:
        """Return the schema to which a reference points. Raises BadSchema if it does not exist."""
        found = self.version(reference.subject, reference.version)
        if found is None:
            missing = f"version {reference.version} of {reference.subject}"
            raise BadSchema(f"The reference {reference.name} names {missing}, which does not exist")
        return found.schema

    def referring(self, subject: str, version: int) -> Iterator[Version]:
        """Yield the versions with a reference to this one, including softly deleted versions."""
        for versions in list(self._subjects.values()):
            for one in list(versions.values()):
                if any((each.subject, each.version) == (subject, version) for each in one.schema.references):
                    yield one

    # Changes.

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of the topic. Logs and skips a record that is malformed or of an unknown kind."""
        try:
            named = json.loads(key)
            kind, subject = named["keytype"], named.get("subject")
            given = None if value is None else json.loads(value)
            if not isinstance(given, dict | None):
                raise TypeError("the value is not an object")
            if kind in _OF_SUBJECTS and not isinstance(subject, str):
                raise TypeError("the subject is not a string")
            if kind == "SCHEMA":
                self._apply_version(subject, int(named["version"]), given)
            elif kind == "DELETE_SUBJECT":
                self._apply_deletion(subject, given)
            elif kind == "CONFIG":
                _set(self.configs, subject, given)
            elif kind == "MODE":
                _set(self.modes, subject, None if given is None else str(given["mode"]))
            elif kind not in _IGNORED:
                _log.warning("ignoring a record of unknown kind %s", kind)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            _log.warning("cannot read the record with key %s: %r", key[:200], error)

    def _apply_version(self, subject: str, version: int, given: Mapping[str, Any] | None) -> None:
        made = None if given is None else _version(subject, version, given)  # raises before anything changes
        before = self._subjects.get(subject, {}).pop(version, None)
        if before is not None:
            self._forget(before)
        if made is not None:
            self._add(made)
        if not self._subjects.get(subject, True):
            del self._subjects[subject]

    def _apply_deletion(self, subject: str, given: Mapping[str, Any] | None) -> None:
        if given is None:
            return
        for one in self.versions(subject):
            if one.version <= int(given["version"]):
                self._add(Version(one.subject, one.version, one.id, one.schema, True, one.others))

    def _add(self, made: Version) -> None:
        self._subjects.setdefault(made.subject, {})[made.version] = made
        self._by_id.setdefault(made.id, {})[made.subject, made.version] = made
        self._ids.setdefault(made.schema, made.id)
        self.id_max = max(self.id_max, made.id)

    def _forget(self, gone: Version) -> None:
        others = self._by_id[gone.id]
        del others[gone.subject, gone.version]
        if not others:
            del self._by_id[gone.id]
            if self._ids.get(gone.schema) == gone.id:
                del self._ids[gone.schema]


def _version(subject: str, version: int, given: Mapping[str, Any]) -> Version:
    others = {key: value for key, value in given.items() if key not in _OF_SCHEMA and value is not None}
    number, is_deleted = int(given["id"]), bool(given.get("deleted", False))
    return Version(subject, version, number, Schema.of_json(given), is_deleted, others)


def _set(where: dict[str | None, Any], subject: str | None, value: Any) -> None:
    if value is None:
        where.pop(subject, None)
    else:
        where[subject] = value
