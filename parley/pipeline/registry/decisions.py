"""The decisions about changes to the registry: what to write and what to reply. Functions of the state, without I/O.

Each raises RegistryError if the change is rejected. The rules are those of Confluent's registry: a schema has one id
under all subjects, versions of a subject count up, and a version is deleted softly before it is deleted permanently.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from parley.pipeline.registry.compatibility import Level, incompatibilities
from parley.pipeline.registry.errors import (
    RegistryError,
    invalid_schema,
    no_schema,
    no_subject,
    no_version,
)
from parley.pipeline.registry.state import (
    Record,
    State,
    Version,
    config_key,
    deletion_key,
    mode_key,
)
from parley.pipeline.schemas import avro, json_schema, protobuf
from parley.pipeline.schemas.model import BadSchema, Loader, Schema, SchemaType
from parley.pipeline.values.json_text import NotFinite, loads, packed

_log = logging.getLogger(__name__)
MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
COMPILED_MAX: Final = 20
"""The maximum number of stored Protobuf schemas that a search compiles: a few seconds of ``protoc``, out of the minute
that a change may take."""
SCHEMA_CHARACTERS_MAX: Final = 900_000
"""The maximum length of a schema's text. A longer text is not parsed, because it could hardly be stored in
one record.
"""
RECORD_BYTES_MAX: Final = 1_048_000
"""The maximum size of a version's record in the topic: by default, brokers accept batches of up to 1,048,588 bytes. The
canonical text may be longer than the given one, and JSON escapes its line breaks and quotes."""


@dataclass(frozen=True, slots=True)
class Change:
    """The records to write, and the reply to send once they are written."""

    records: Sequence[Record]
    reply: Any


# --- Schemas ---


def canonical(schema: Schema, load: Loader) -> Schema:
    """Check the schema and return it with its canonical text. Raises RegistryError: 42201 if it is invalid, 42209 if it
    is too large.
    """
    if len(schema.text) > SCHEMA_CHARACTERS_MAX:
        raise RegistryError(42209, f"Schema is too large: it has more than {SCHEMA_CHARACTERS_MAX} characters")
    with _foreign(schema):
        match schema.type:
            case SchemaType.AVRO:
                avro.parsed(schema, load)
                return schema.with_text(avro.canonical(schema))
            case SchemaType.JSON:
                json_schema.parsed(schema, load)
                return schema.with_text(json_schema.canonical(schema))
            case SchemaType.PROTOBUF:
                return schema.with_text(protobuf.canonical(schema, load))


@contextmanager
def _foreign(schema: Schema) -> Iterator[None]:
    """Turn any error in the body of ``with`` into a RegistryError (42201): the schema comes from a client, so it must
    be the cause.
    """
    try:
        yield
    except BadSchema as error:
        raise invalid_schema(error) from None
    except Exception as error:
        _log.warning("rejecting a schema of type %s: %s: %.200r", schema.type, type(error).__name__, str(error))
        raise invalid_schema(f"Invalid schema: {type(error).__name__}: {str(error)[:200]}") from None


def resolved(state: State, schema: Schema) -> Schema:
    """Return the schema with the version of each reference: -1 stands for the latest. Raises RegistryError (42201) if a
    reference does not exist.
    """
    made = []
    for one in schema.references:
        active = state.versions(one.subject)
        wanted = active[-1].version if one.version == -1 and active else one.version
        if all(each.version != wanted for each in active):
            raise invalid_schema(f"No schema reference found for subject {one.subject} and version {one.version}")
        made.append(replace(one, version=wanted))
    return replace(schema, references=tuple(made))


def find(state: State, subject: str, schema: Schema, *, deleted: bool = False) -> Version | None:
    """Return the latest version of the subject with this schema; None if there is none. The schema's text must be
    canonical.

    A schema that another registry has stored may have a different text. Of such Protobuf schemas, only those with the
    same names are compiled, and at most the latest ``COMPILED_MAX``.
    """
    compiled = 0
    for one in reversed(state.versions(subject, deleted=deleted)):
        if one.schema == schema:
            return one
        if one.schema.type is not schema.type or one.schema.references != schema.references:
            continue
        if schema.type is SchemaType.PROTOBUF:
            if compiled == COMPILED_MAX or not protobuf.may_be_same(one.schema.text, schema.text):
                continue
            compiled += 1
        if _means(state, one.schema, schema):
            return one
    return None


def _means(state: State, stored: Schema, wanted: Schema) -> bool:
    """Return True if the stored schema has the canonical text of the wanted one."""
    try:
        return canonical(stored, state.load) == wanted
    except RegistryError:
        return False


def check(state: State, schema: Schema, earlier: Sequence[Version], level: Level) -> list[str]:
    """Return the reasons why the schema must not follow these versions. Raises RegistryError (42201).

    Versions that no client can parse, because a number in them is not finite, are ignored: earlier releases stored
    them.
    """
    with _foreign(schema):
        return incompatibilities(schema, [one.schema for one in earlier if _is_finite(one)], level, state.load)


def _is_finite(version: Version) -> bool:
    """Return True unless a number in the version's text is not finite."""
    if version.schema.type is SchemaType.PROTOBUF:
        return True
    try:
        loads(version.schema.text)
    except NotFinite as error:
        _log.warning("not comparing with version %d of %s: %s", version.version, version.subject, error)
        return False
    except (ValueError, RecursionError):
        pass  # the comparison reports it
    return True


def register(
    state: State, subject: str, schema: Schema, default: Level, *, number: int | None, version: int | None
) -> Change:
    """Add a version, unless the subject already has the schema. Without a configured level, ``default`` applies.

    ``number`` (the schema id) is given only in mode IMPORT. ``version``, if given, must be the next version, except in
    that mode. Raises RegistryError, for example 409 if the schema is incompatible with earlier versions.
    """
    mode = _writable(state, subject)
    if number is not None and mode != "IMPORT":
        raise RegistryError(42205, f"Subject {subject} is not in import mode")
    if mode == "IMPORT":
        return _import(state, subject, schema, number, version)
    schema = resolved(state, schema)
    known = find(state, subject, schema)
    if known is not None:
        return Change((), _registered(known))
    every = state.versions(subject, deleted=True)
    level = level_of(state, subject, default)
    found = check(state, schema, [one for one in every if not one.is_deleted], level)
    if found:
        details = ", ".join([*found, f"compatibility: '{level}'"])
        raise RegistryError(
            409,
            f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
            f"details: [{details}]",
        )
    again = find(state, subject, schema, deleted=True)
    known_id = again.id if again else state.id_of(schema)
    following = (every[-1].version if every else 0) + 1
    if version not in (None, -1, following):
        raise RegistryError(42201, f"Version is not one more than previous version: {version}, expected {following}")
    return _added(Version(subject, following, known_id or state.id_max + 1, schema))


def _import(state: State, subject: str, schema: Schema, number: int | None, version: int | None) -> Change:
    """Add the schema with the id and, if given, the version that it has in another registry. Raises RegistryError
    (42205).
    """
    if number is None:
        raise RegistryError(42205, f"Subject {subject} is in import mode: a schema needs its id")
    if any(one.schema != schema for one in state.with_id(number)):
        raise RegistryError(42205, f"Overwrite new schema with id {number} is not permitted.")
    every = state.versions(subject, deleted=True)
    wanted = version if version is not None and version > 0 else (every[-1].version if every else 0) + 1
    before = state.version(subject, wanted)
    if before is not None and not before.is_deleted and before.schema != schema:
        raise RegistryError(42205, f"Overwrite version {wanted} of {subject} is not permitted.")
    return _added(Version(subject, wanted, number, schema))


def _added(version: Version) -> Change:
    """Return the change that adds a version. Raises RegistryError (42209) if its record would be too large."""
    record = key, value = version.record()
    size = len(key) + len(value or b"")
    if size > RECORD_BYTES_MAX:
        raise RegistryError(
            42209,
            f"Schema is too large: in canonical form its record takes {size} bytes, more than {RECORD_BYTES_MAX}",
        )
    return Change([record], _registered(version))


def _registered(version: Version) -> dict[str, Any]:
    return {"id": version.id, "version": version.version, **version.schema.as_json()}


# --- Deletion ---


def delete_version(state: State, subject: str, version: int | None, *, permanent: bool) -> Change:
    """Delete a version; None means the latest. The deletion is soft, unless ``permanent`` is set.

    Raises RegistryError, for example 40407 if ``permanent`` is set for a version that is not softly deleted yet, or
    42206 if another schema refers to the version.
    """
    _writable(state, subject)
    every = state.versions(subject, deleted=True)
    if not every:
        raise no_subject(subject)
    if version is None:
        active = [one for one in every if not one.is_deleted]
        one = active[-1] if active else every[-1]
    else:
        found = state.version(subject, version)
        if found is None:
            raise no_version(version)
        one = found
    if one.is_deleted and not permanent:
        raise RegistryError(
            40406,
            f"Subject '{subject}' Version {one.version} was soft deleted.Set permanent=true to delete permanently",
        )
    if permanent and not one.is_deleted:
        raise RegistryError(
            40407, f"Subject '{subject}' Version {one.version} was not deleted first before being permanently deleted"
        )
    _unreferenced(state, [one], permanent=permanent)
    return Change([_tombstone(one) if permanent else one.record(deleted=True)], one.version)


def delete_subject(state: State, subject: str, *, permanent: bool) -> Change:
    """Delete all versions of a subject. The deletion is soft, unless ``permanent`` is set, and also removes the
    subject's configuration and mode.

    Raises RegistryError, for example 40405 if ``permanent`` is set for a subject that is not softly deleted yet, or
    42206 if another schema refers to a version.
    """
    _writable(state, subject)
    every = state.versions(subject, deleted=True)
    active = [one for one in every if not one.is_deleted]
    if not every:
        raise no_subject(subject)
    if not active and not permanent:
        raise RegistryError(40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")
    if active and permanent:
        raise RegistryError(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")
    _unreferenced(state, every if permanent else active, permanent=permanent)
    if permanent:
        return Change([_tombstone(one) for one in every], [one.version for one in every])
    value = packed({"subject": subject, "version": active[-1].version})
    records: list[Record] = [(deletion_key(subject), value)]
    records += [(mode_key(subject), None)] if subject in state.modes else []
    records += [(config_key(subject), None)] if subject in state.configs else []
    return Change(records, [one.version for one in active])


def _tombstone(one: Version) -> Record:
    return one.record()[0], None


def _unreferenced(state: State, versions: Sequence[Version], *, permanent: bool) -> None:
    gone = {(one.subject, one.version) for one in versions}
    for one in versions:
        for user in state.referring(one.subject, one.version):
            if (permanent or not user.is_deleted) and (user.subject, user.version) not in gone:
                raise RegistryError(
                    42206,
                    "One or more references exist to the schema "
                    f"{{magic=1,keytype=SCHEMA,subject={one.subject},version={one.version}}}.",
                )


# --- Configuration and modes ---


def level_of(state: State, subject: str | None, default: Level) -> Level:
    """Return the compatibility level that applies to the subject: its own; otherwise the global one; otherwise
    ``default``.

    Without a subject, return the global level or ``default``.
    """
    for which in (subject, None):
        given = str(state.configs.get(which, {}).get("compatibilityLevel"))
        if given in Level.__members__:
            return Level(given)
    return default


def set_config(subject: str | None, given: Mapping[str, Any]) -> Change:
    """Set the compatibility level of a subject; None means the global level."""
    others = sorted(key for key, value in given.items() if key != "compatibility" and value is not None)
    if others:
        raise RegistryError(42203, f"This registry does not support the settings {', '.join(others)}; remove them")
    text = str(given.get("compatibility", "")).upper()
    if text not in Level.__members__:
        raise RegistryError(
            42203,
            "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
            "forward_transitive, and full_transitive",
        )
    named = {} if subject is None else {"subject": subject}
    return Change([(config_key(subject), packed({**named, "compatibilityLevel": text}))], {"compatibility": text})


def clear_config(state: State, subject: str | None, default: Level) -> Change:
    """Remove the compatibility level of a subject; None means the global level. The reply contains the level that
    applied before.
    """
    if subject is not None and subject not in state.configs:
        raise no_subject(subject)
    before = level_of(state, subject, default)
    return Change([(config_key(subject), None)], {"compatibilityLevel": before})


def mode_of(state: State, subject: str | None) -> str:
    """Return the mode that applies to the subject: its own, or the global one. A global READONLY_OVERRIDE applies to
    all subjects.
    """
    everywhere = state.modes.get(None, "READWRITE")
    return everywhere if everywhere == "READONLY_OVERRIDE" else state.modes.get(subject, everywhere)


def set_mode(state: State, subject: str | None, given: Mapping[str, Any], *, force: bool) -> Change:
    """Set the mode of a subject; None means the global mode. ``force`` allows IMPORT even if there are schemas."""
    text = str(given.get("mode", "")).upper()
    if text not in MODES:
        raise RegistryError(42204, f"Invalid mode. Valid values are {', '.join(MODES)}")
    has_schemas = any(state.versions(one) for one in (state.subjects() if subject is None else [subject]))
    if text == "IMPORT" and mode_of(state, subject) != "IMPORT" and has_schemas and not force:
        raise RegistryError(42205, "Cannot import since found existing subjects; use force=true to do so nevertheless")
    named = {} if subject is None else {"subject": subject}
    return Change([(mode_key(subject), packed({**named, "mode": text}))], {"mode": text})


def clear_mode(state: State, subject: str | None) -> Change:
    """Remove the mode of a subject; None means the global mode. The reply contains the mode that applied before."""
    if subject is not None and subject not in state.modes:
        raise no_subject(subject)
    return Change([(mode_key(subject), None)], {"mode": mode_of(state, subject)})


def _writable(state: State, subject: str) -> str:
    mode = mode_of(state, subject)
    if mode.startswith("READONLY"):
        raise RegistryError(42205, f"Subject {subject} is in read-only mode")
    return mode


def schema_with(state: State, number: int) -> Version:
    """Return a version with this schema id, preferably one that is not deleted. Raises RegistryError (40403) if there
    is none.
    """
    found = state.with_id(number)
    if not found:
        raise no_schema(number)
    return next((one for one in found if not one.is_deleted), found[0])
