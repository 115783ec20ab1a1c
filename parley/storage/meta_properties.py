"""``meta.properties`` of a log directory: the cluster and the broker that the directory belongs to.

Version 0 (``broker.id``) is written by brokers with a separate coordination store: Parley, and Apache Kafka up to 3.9
with ZooKeeper. Version 1 (``node.id``, KIP-631) is written by Apache Kafka in KRaft mode. Parley reads both and keeps
the version of an existing file.

Parley adds a comment line that ends with a checksum (``with_blank_checksum``), because a broker whose generated id was
altered would start as another broker.
"""

from __future__ import annotations

import re
from pathlib import Path

from parley.light_dataclasses import dataclass
from parley.storage.checkpoints import (
    INT32_MAX,
    MalformedCheckpoint,
    verify_blank_checksum,
    whole_number,
    with_blank_checksum,
    write_atomically,
)

DIRECTORY_FILE = "meta.properties"

CHECKSUM_COMMENT = "The blanks at the end of this line are a checksum: remove the line if you edit the file."
"""The text of the last line, a comment. Its presence shows that Parley wrote a checksum: the files of Apache Kafka may
end with blanks, too."""

_ID_KEYS = {0: "broker.id", 1: "node.id"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_KEY_END = re.compile(r"(?<!\\)(?:\s*[=:]\s*|\s+)")


class MalformedIdentity(ValueError):
    """Raised if a file with an identity (``meta.properties``, ``partition.metadata``, ``coordination.identity``) was
    altered, cannot be parsed or lacks a required key."""


class InconsistentIdentity(ValueError):
    """Raised if the directory belongs to another owner. The message names the owner and the ways to correct this."""


class InconsistentClusterId(InconsistentIdentity):
    """Raised if the directory belongs to another cluster."""


class InconsistentBrokerId(InconsistentIdentity):
    """Raised if the directory belongs to another broker of the cluster."""


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """The contents of ``meta.properties``. ``cluster_id`` is None in directories written by Kafka before 0.10.1."""

    cluster_id: str | None
    broker_id: int
    version: int = 0
    directory_id: str | None = None
    has_checksum: bool = True
    """False if Apache Kafka, an older version of Parley or an operator wrote the file."""

    @classmethod
    def read(cls, directory: Path) -> DirectoryIdentity | None:
        """Return the identity of ``directory``, or None if it has no ``meta.properties``, because no broker has used
        it.

        Raises ``MalformedIdentity``, and ``OSError`` if the disk fails.
        """
        path = directory / DIRECTORY_FILE
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            has_checksum = CHECKSUM_COMMENT.encode() in data and verify_blank_checksum(data)
        except MalformedCheckpoint as error:
            raise MalformedIdentity(
                f"{path} was altered: {error}. If you have edited the file, remove its last line. Otherwise restore it "
                "from a backup; or compare its ids with those in the broker's other log directories and those of the "
                "other brokers, correct them, and remove the last line. With a wrong id, the broker's replicas count "
                "as lost"
            ) from None
        try:
            return cls._parse(parse_properties(data.decode("latin-1")), has_checksum)
        except (MalformedIdentity, MalformedCheckpoint) as error:
            raise MalformedIdentity(
                f"{path} is malformed: {error}. Restore it from a backup; or, if the directory certainly belongs to "
                "this broker and broker.id is configured, remove the file: the broker writes it again"
            ) from None

    @classmethod
    def _parse(cls, properties: dict[str, str], has_checksum: bool) -> DirectoryIdentity:
        version = whole_number(properties.get("version", "").strip(), INT32_MAX)
        if version not in _ID_KEYS:
            raise MalformedIdentity(f"unknown version {version}")
        key = _ID_KEYS[version]
        if key not in properties:
            raise MalformedIdentity(f"{key} is missing")
        cluster_id = properties.get("cluster.id") or None
        if version > 0 and cluster_id is None:
            raise MalformedIdentity("cluster.id is missing")
        broker_id = whole_number(properties[key].strip(), INT32_MAX)
        return cls(cluster_id, broker_id, version, properties.get("directory.id") or None, has_checksum)

    def write(self, directory: Path) -> None:
        """Write ``meta.properties``. Blocks until it is on disk. Raises ``OSError``."""
        properties = {"version": str(self.version), _ID_KEYS[self.version]: str(self.broker_id)}
        if self.cluster_id is not None:
            properties["cluster.id"] = self.cluster_id
        if self.directory_id is not None:
            properties["directory.id"] = self.directory_id
        text = "".join(f"{key}={_escape(value)}\n" for key, value in properties.items()) + f"# {CHECKSUM_COMMENT}\n"
        write_atomically(directory / DIRECTORY_FILE, with_blank_checksum(text.encode("latin-1")))

    def require(self, directory: Path, cluster_id: str, broker_id: int) -> None:
        """Raise ``InconsistentIdentity`` unless ``directory`` belongs to this broker of this cluster."""
        if self.cluster_id not in (None, cluster_id):
            raise InconsistentClusterId(
                f"{directory} belongs to cluster {self.cluster_id}, but the coordination store belongs to cluster "
                f"{cluster_id}. Correct log.dirs or coordination.url; or empty the directory to discard its data"
            )
        if self.broker_id != broker_id:
            raise InconsistentBrokerId(
                f"{directory} belongs to broker {self.broker_id}, but this is broker {broker_id}. Correct broker.id or "
                "log.dirs; or, if its data was moved here from that broker, correct the id in "
                f"{directory / DIRECTORY_FILE}, and remove its last line if that is the comment with the checksum"
            )


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of a Java properties file. Values that continue on the next line are not supported."""
    properties = {}
    for line in re.split(r"\r\n|\r|\n", text):
        stripped = line.lstrip(" \t\f")
        if stripped and stripped[0] not in "#!":
            key, *rest = _KEY_END.split(stripped, maxsplit=1)
            properties[_unescape(key)] = _unescape(rest[0]) if rest else ""
    return properties


def _unescape(text: str) -> str:
    units = _ESCAPE.sub(lambda match: _unescaped(match[1]), text)
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unescaped(escape: str) -> str:
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    return {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}.get(escape, escape)


def _escape(value: str) -> str:
    escaped = re.sub(r"([\\#!=:]|^ )", r"\\\1", value)
    return "".join(
        character if " " <= character <= "~" else "".join(f"\\u{unit:04X}" for unit in _utf16(character))
        for character in escaped
    )


def _utf16(character: str) -> list[int]:
    data = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]
