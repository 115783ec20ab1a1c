"""The client of a schema registry of any vendor: ``confluent_kafka.schema_registry``, with two kinds of errors.

A value in a topic is a zero byte, the id of its schema in four bytes, for Protobuf the position of the message in the
file, and the data (``framed``, ``unframed``). ``Settings`` can be pickled; ``client_of`` keeps one client for each of
them in a process.
"""

from __future__ import annotations

import re
import struct as packing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Self

from parley.pipeline.schemas.model import BadSchema, Reference, Schema, SchemaType

PREFIX: Final = "schema.registry."
_HEAD: Final = packing.Struct(">bI")
_TRIES: Final = 2
_WAIT_MS: Final = 100
_SECONDS: Final = 10
_SERVER_ERROR: Final = 500
_SOURCE: Final = "basic.auth.credentials.source"
"""A setting of Confluent's Java client; its Python client finds the login by itself."""
_LOGIN: Final = re.compile(r"//[^/@]*@")
"""A user and a password within a URL, which messages leave out."""
_KEYS: Final = (
    "url", "basic.auth.user.info", _SOURCE, "ssl.ca.location", "ssl.certificate.location",
    "ssl.key.location", "ssl.key.password", "bearer.auth.credentials.source", "bearer.auth.token",
    "bearer.auth.issuer.endpoint.url", "bearer.auth.client.id", "bearer.auth.client.secret", "bearer.auth.scope",
    "bearer.auth.logical.cluster", "bearer.auth.identity.pool.id",
)  # fmt: skip


class RegistryRefused(ValueError):
    """Raised if the registry has rejected a request. Sending it again does not help."""


class RegistryAway(ConnectionError):
    """Raised if no registry responds. A later attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings to reach a registry, by the names of Confluent's client: ``url`` (several, separated by commas),
    login and TLS.
    """

    items: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Read the settings, whose names have no prefix. Raises ValueError for an unknown or a missing one."""
        for name in given:
            if name not in _KEYS:
                raise ValueError(f"'{PREFIX}{name}' is unknown. Available: {', '.join(PREFIX + one for one in _KEYS)}")
        if not given.get("url", "").strip():
            raise ValueError(f"'{PREFIX}url' is missing: the address of a schema registry, as http://localhost:8081")
        source = given.get(_SOURCE, "USER_INFO")
        if source not in ("USER_INFO", "URL"):
            raise ValueError(f"'{PREFIX}{_SOURCE}' must be USER_INFO or URL, not {source}")
        return cls(tuple(sorted((name, value) for name, value in given.items() if name != _SOURCE)))


@lru_cache(64)
def client_of(settings: Settings) -> Client:
    """Return the process's client for these settings."""
    return Client(settings)


class Client:
    """Looks up schemas by id and by subject. All methods block, and raise RegistryRefused and RegistryAway."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Any = None

    def schema(self, number: int) -> Schema:
        """Return the schema with this id."""
        return _model(self._call("get_schema", number))

    def load(self, reference: Reference) -> Schema:
        """Return the schema to which a reference points. Also raises BadSchema."""
        return _model(self._call("get_version", reference.subject, reference.version).schema)

    def latest(self, subject: str) -> tuple[int, Schema] | None:
        """Return the number and the schema of the subject's latest version; None if the subject has none."""
        try:
            found = self._call("get_latest_version", subject)
        except RegistryRefused as error:
            if " 404 " in f"{error}":
                return None
            raise
        return found.version, _model(found.schema)

    def version(self, subject: str, version: int) -> tuple[int, Schema]:
        """Return the schema id and the schema of a version."""
        found = self._call("get_version", subject, version)
        return found.schema_id, _model(found.schema)

    def versions(self, subject: str) -> list[int]:
        """Return the numbers of the subject's versions, in ascending order."""
        return sorted(self._call("get_versions", subject))

    def register(self, subject: str, schema: Schema) -> int:
        """Register the schema as a new version of the subject, unless it is one already. Returns its id."""
        return int(self._call("register_schema", subject, _confluents(schema)))

    def look_up(self, subject: str, schema: Schema) -> int:
        """Return the id of a schema that is a version of the subject. Raises RegistryRefused if it is not one."""
        return int(self._call("lookup_schema", subject, _confluents(schema)).schema_id)

    def _call(self, name: str, *arguments: Any) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        urls = _LOGIN.sub("//", dict(self._settings.items)["url"])
        try:
            if self._client is None:
                self._client = _made(self._settings)
            return getattr(self._client, name)(*arguments)
        except SchemaRegistryError as error:
            text = f"The schema registry {urls} refused {name}: {error.http_status_code} {error.error_message}"
            if error.http_status_code < _SERVER_ERROR:
                raise RegistryRefused(text) from None
            raise RegistryAway(text) from None
        except (BadSchema, RegistryRefused):
            raise
        except Exception as error:  # the errors of its HTTP client have no common class
            raise RegistryAway(f"No schema registry responds: {urls}: {error or type(error).__name__}") from None


def _made(settings: Settings) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    given: dict[str, Any] = {"max.retries": _TRIES, "retries.wait.ms": _WAIT_MS, "timeout": _SECONDS}
    return SchemaRegistryClient({**given, **dict(settings.items)})


def _model(given: Any) -> Schema:
    references = tuple(Reference(one.name, one.subject, one.version) for one in given.references or ())
    try:
        language = SchemaType(given.schema_type or "AVRO")
    except ValueError:
        raise RegistryRefused(
            f"The schema registry returned a schema of type {given.schema_type}. Supported: {', '.join(SchemaType)}"
        ) from None
    return Schema(language, given.schema_str, references)


def _confluents(schema: Schema) -> Any:
    from confluent_kafka.schema_registry import Schema as Theirs
    from confluent_kafka.schema_registry import SchemaReference

    references = [SchemaReference(one.name, one.subject, one.version) for one in schema.references]
    return Theirs(schema.text, schema.type.value, references)


def framed(number: int) -> bytes:
    """Return the bytes that precede the data of a value with this schema."""
    return _HEAD.pack(0, number)


def unframed(data: bytes) -> tuple[int, int]:
    """Return the schema id at the beginning of a value, and the position after it. Raises ValueError if
    there is no id.
    """
    if len(data) < _HEAD.size or data[0] != 0:
        raise ValueError("the value does not begin with a schema id")
    return _HEAD.unpack_from(data)[1], _HEAD.size
