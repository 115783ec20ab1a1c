"""Apache Kafka's own message definitions, read from its jars: the reference for ``parley.protocol.messages``.

Two releases are read together, because the newest no longer contains the versions of old clients. If both contain a
version, the newer release is right.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RELEASES = ("4.3.1", "3.9.2")  # the newer one first

OWN_TAG_MIN = 10_000
"""The lowest tag of Parley's own fields. Kafka uses only lower tags, and its brokers ignore these."""

Json = dict[str, Any]
NO_VERSIONS: frozenset[int] = frozenset()


def versions(text: str | None, highest: int) -> frozenset[int]:
    """Parse Kafka's notation of a range: "3", "3-7", "3+" or "none"."""
    if text in (None, "none"):
        return NO_VERSIONS
    match = re.fullmatch(r"(\d+)(?:-(\d+)|(\+))?", text)
    assert match, text
    first = int(match[1])
    last = int(match[2]) if match[2] else highest if match[3] else first
    return frozenset(range(first, last + 1))


def snake_case(name: str) -> str:
    """Return our name for a field: with an underscore before each capital letter that follows a small letter or a
    digit."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def is_own(field: Any) -> bool:
    """True for a field that Parley has added to a message of Kafka's."""
    return field.tag is not None and field.tag >= OWN_TAG_MIN


@dataclass(frozen=True, slots=True)
class Field:
    """The properties of one field in one version."""

    type: str
    nullable: bool
    tag: int | None


@dataclass(frozen=True, slots=True)
class Definition:
    """One message in one release."""

    jar: Path
    source: Json
    valid: frozenset[int]
    flexible: frozenset[int]

    @classmethod
    def read(cls, jar: Path, source: Json) -> Definition:
        valid = versions(source["validVersions"], 0)
        highest = max(valid, default=0)
        return cls(jar, source, valid, versions(source.get("flexibleVersions"), highest) & valid)

    def fields(self, version: int) -> Iterator[tuple[str, Field]]:
        """Return the path and the properties of each field of this version, in the order of the definition."""
        yield from self._walk(self.source["fields"], "", version)

    def _walk(self, fields: Iterable[Json], prefix: str, version: int) -> Iterator[tuple[str, Field]]:
        for entry in fields:
            if version in self._range(entry, "versions") | self._range(entry, "taggedVersions"):
                path = prefix + snake_case(entry["name"])
                tagged = version in self._range(entry, "taggedVersions")
                nullable = version in self._range(entry, "nullableVersions")
                yield path, Field(entry["type"], nullable, entry["tag"] if tagged else None)
                yield from self._walk(self.children(entry), path + ".", version)

    def children(self, entry: Json) -> list[Json]:
        """Return the fields of the struct in a field; empty for other fields."""
        if "fields" in entry:
            return list(entry["fields"])
        name = entry["type"].removeprefix("[]")
        for struct in self.source.get("commonStructs", []):
            if struct["name"] == name:
                return list(struct["fields"])
        return []

    def _range(self, entry: Json, key: str) -> frozenset[int]:
        return versions(entry.get(key), max(self.valid, default=0))

    def entries(self) -> Iterator[tuple[str, Json]]:
        """Return the path and the complete entry of each field of any version."""

        def walk(fields: Iterable[Json], prefix: str) -> Iterator[tuple[str, Json]]:
            for entry in fields:
                path = prefix + snake_case(entry["name"])
                yield path, entry
                yield from walk(self.children(entry), path + ".")

        yield from walk(self.source.get("fields", []), "")  # a release that has removed the message declares none


@dataclass(frozen=True, slots=True)
class Reference:
    """A message in all releases that contain it, the newer first."""

    name: str
    definitions: tuple[Definition, ...]

    @property
    def kind(self) -> str:
        return str(self.definitions[0].source["type"])

    @property
    def key(self) -> int | None:
        return self.definitions[0].source.get("apiKey")

    @property
    def valid(self) -> frozenset[int]:
        return NO_VERSIONS.union(*(definition.valid for definition in self.definitions))

    def at(self, version: int) -> Definition:
        """Return the definition that is valid for this version."""
        return next(definition for definition in self.definitions if version in definition.valid)

    def entries(self) -> dict[str, Json]:
        """Return each field's entry from the newest release that contains the field."""
        found: dict[str, Json] = {}
        for definition in self.definitions:
            for path, entry in definition.entries():
                found.setdefault(path, entry)
        return found


def read_jar(jar: Path) -> dict[str, Definition]:
    """Return every message definition in a jar. Definitions are JSON with // comments on separate lines."""
    found = {}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"(common/)?message/\w+\.json", name):
                text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                source = json.loads(text)
                found[source["name"]] = Definition.read(jar, source)
    return found


def references(directories: Iterable[Path]) -> dict[str, Reference]:
    """Return all messages in the jars of the releases in these directories, which list the newer release first."""
    found: dict[str, list[Definition]] = {}
    for directory in directories:
        for jar in sorted(directory.glob("libs/kafka-*.jar")):
            for name, definition in read_jar(jar).items():
                found.setdefault(name, []).append(definition)
    return {name: Reference(name, tuple(definitions)) for name, definitions in found.items()}
