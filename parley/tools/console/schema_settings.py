"""The console's sources of schemas: the registry's settings from properties, and schemas from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parley.pipeline.schemas.client import PREFIX, Settings
from parley.pipeline.schemas.model import BadSchema, Schema, SchemaType, no_references
from parley.tools.console.record_schemas import FileSchema, SchemaSettings

if TYPE_CHECKING:
    from parley.pipeline.schemas.plain import Read

_TYPES: Final = {".avsc": SchemaType.AVRO, ".proto": SchemaType.PROTOBUF, ".json": SchemaType.JSON}
_PEM_FILES: Final = {
    "ssl.truststore.location": ("ssl.ca.location",),
    "ssl.keystore.location": ("ssl.certificate.location", "ssl.key.location"),
}
"""The names of the files of Confluent's Java client, and the names of the same files in its Python client."""


def schema_settings(
    url: str | None, properties: Mapping[str, str], values: Sequence[str], keys: Sequence[str]
) -> SchemaSettings | None:
    """Return the sources of schemas, or None if none is given. ``properties`` contain ``schema.registry.*``. ``values``
    and ``keys`` are texts ``TOPIC=FILE``. Blocks.

    Raises ValueError if a setting or a schema is invalid, or a file cannot be read.
    """
    given = {name.removeprefix(PREFIX): value for name, value in properties.items() if name.startswith(PREFIX)}
    if url is not None:
        given["url"] = url
    files = {
        (topic, is_key): schema
        for texts, is_key in ((values, False), (keys, True))
        for topic, schema in map(_file_schema, texts)
    }
    registry = Settings.of(_in_python(given)) if given else None
    return SchemaSettings(registry, files) if given or files else None


def _in_python(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with the names of Confluent's Python client. Raises ValueError for a store that is not in PEM
    format."""
    found = dict(given)
    for java, names in _PEM_FILES.items():
        kind = found.pop(java.replace("location", "type"), "JKS")
        if (path := found.pop(java, None)) is not None:
            if kind.upper() != "PEM":
                raise ValueError(f"'{PREFIX}{java}' must be a PEM file, with '{PREFIX}{java[:-8]}type=PEM'")
            found |= dict.fromkeys(names, path)
    return found


def _file_schema(text: str) -> tuple[str, FileSchema]:
    topic, equals, path = text.partition("=")
    if not equals or not topic or not path:
        raise ValueError(f"{text!r} must be TOPIC=FILE")
    kind = _TYPES.get(Path(path).suffix.lower())
    if kind is None:
        raise ValueError(f"{path}: a schema file's name must end in one of: {', '.join(_TYPES)}")
    try:
        content = Path(path).read_text(encoding="utf-8")
        return topic, FileSchema(Path(path).name, kind.value, _reader(Schema(kind, content)))
    except (OSError, UnicodeDecodeError, BadSchema) as error:
        raise ValueError(f"{path}: {error}") from None


def _reader(schema: Schema) -> Read:
    from parley.pipeline.schemas.plain import reader

    return reader(schema, no_references, is_framed=False)
