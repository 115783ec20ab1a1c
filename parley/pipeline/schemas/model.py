"""A schema as a registry stores it: its type, its text, and its references to schemas of other subjects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

_REFERENCES_MAX: Final = 1000
"""The maximum number of references of a schema, including those of the referenced schemas: a few dozen in practice."""


class BadSchema(ValueError):
    """Raised if a text is not a valid schema of its type, or has a reference to a missing schema. The
    message says why.
    """


class BadColumn(BadSchema):
    """Raised if a schema language cannot describe a column or a field. ``path`` names it; "" is the column itself."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        return f"{self.path or 'the column'} {self.reason}"

    @classmethod
    def of_type(cls, kind: Any, language: str) -> BadColumn:
        """Return the error for a type that the language lacks."""
        return cls(f"is of type {kind}, which {language} lacks: cast it to a text or a number, or leave it out")


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Put ``name`` in front of the path of a BadColumn that the body of ``with`` raises, because the body describes
    this field.
    """
    try:
        yield
    except BadColumn as error:
        raise BadColumn(error.reason, f"{name}.{error.path}" if error.path else name) from None


class SchemaType(StrEnum):
    """The schema languages, by their names in the registry's API."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference in a schema: ``name`` stands for a version of another subject."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        """Return the reference in the form of the API and of the topic."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema with its identity: two registrations of equal schemas get the same id."""

    type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()

    def with_text(self, text: str) -> Schema:
        """Return this schema, written as ``text``."""
        return replace(self, text=text)

    @classmethod
    def of_json(cls, given: Mapping[str, Any]) -> Schema:
        """Read a schema in the form of the API and of the topic. Raises BadSchema."""
        kind, text, references = given.get("schemaType") or "AVRO", given.get("schema"), given.get("references") or []
        if kind not in SchemaType.__members__:
            raise BadSchema(f"Invalid schema type {kind}: it must be one of {', '.join(SchemaType)}")
        if not isinstance(text, str) or not isinstance(references, list):
            raise BadSchema("A schema needs 'schema', which is text, and may have 'references', a list")
        return cls(SchemaType(kind), text, tuple(_reference(one) for one in references))

    def as_json(self) -> dict[str, Any]:
        """Return the schema in the form of the API and of the topic. The type Avro is omitted, as in Confluent's
        registry."""
        made: dict[str, Any] = {} if self.type is SchemaType.AVRO else {"schemaType": self.type.value}
        if self.references:
            made["references"] = [one.as_json() for one in self.references]
        return {**made, "schema": self.text}


def _reference(given: Any) -> Reference:
    if isinstance(given, dict):
        name, subject, version = given.get("name"), given.get("subject"), given.get("version")
        if isinstance(name, str) and isinstance(subject, str) and type(version) is int:
            return Reference(name, subject, version)
    raise BadSchema("A reference needs 'name' and 'subject', which are text, and 'version', a number")


Loader = Callable[[Reference], Schema]
"""A function that returns the schema to which a reference points. It raises BadSchema if there is none."""


def no_references(reference: Reference) -> Schema:
    """Raise BadSchema. This is the loader for schemas without references."""
    raise BadSchema(f"The schema has the reference {reference.name}, but no registry is configured")


def closure(schema: Schema, load: Loader) -> dict[str, Schema]:
    """Return all schemas to which this one refers, directly or not, by name. Each follows those to which it refers.

    Raises BadSchema if a schema is missing or of another type, if a reference is circular, or if there are too many.
    """
    found: dict[str, Schema] = {}
    open_names: list[str] = []

    def visit(references: tuple[Reference, ...]) -> None:
        for one in references:
            if one.name in open_names:
                raise BadSchema(f"The reference {one.name} is circular")
            if one.name in found:
                continue
            if len(found) + len(open_names) >= _REFERENCES_MAX:
                raise BadSchema(f"The schema has more than {_REFERENCES_MAX} references")
            loaded = load(one)
            if loaded.type is not schema.type:
                raise BadSchema(f"The reference {one.name} is a schema of type {loaded.type}, not {schema.type}")
            open_names.append(one.name)
            visit(loaded.references)
            open_names.pop()
            found[one.name] = loaded

    visit(schema.references)
    return found
