"""Keys, values and headers as a browser can show them, and as a filter's expression sees them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from parley.pipeline.values.json_text import dumps
from parley.protocol.records.record import Record
from parley.tools.console.record_schemas import Decoded

SHOWN_BYTES: Final = 16 * 1024
"""The maximum number of bytes of a key or a value that are sent to the browser."""


@dataclass(frozen=True, slots=True)
class SeenRecord:
    """A record of a partition; ``key`` and ``value`` are decoded if a schema is known for them."""

    partition: int
    record: Record
    key: Decoded | None = None
    value: Decoded | None = None

    def as_data(self) -> dict[str, Any]:
        """Return the record as JSON data for the browser."""
        return {
            "partition": self.partition,
            "offset": self.record.offset,
            "timestamp": self.record.timestamp,
            "key": shown(self.record.key, self.key),
            "value": shown(self.record.value, self.value),
            "headers": [{"name": name, "value": shown(value)} for name, value in self.record.headers],
        }

    def names(self) -> dict[str, Any]:
        """Return the values of the names that a filter's expression can use."""
        value = shown(self.record.value, self.value)
        return {
            "key": _plain(shown(self.record.key, self.key), self.key),
            "value": _plain(value, self.value),
            "text": value.get("text"),
            "offset": self.record.offset,
            "partition": self.partition,
            "timestamp": self.record.timestamp,
            "headers": {name: _plain(shown(data)) for name, data in self.record.headers},
        }


def shown(data: bytes | None, decoded: Decoded | None = None) -> dict[str, Any]:
    """Return bytes as JSON data for the browser: decoded, as JSON, as text, or otherwise as base64. If there are more
    than ``SHOWN_BYTES``, only the first ones are included, and ``cut`` is true."""
    if data is None:
        return {"kind": "null", "bytes": 0}
    if decoded is not None:
        return {**_shown_decoded(data, decoded), "schema": decoded.schema, "bytes": len(data)}
    cut = bytes(data[:SHOWN_BYTES])
    is_cut = len(data) > len(cut)
    try:
        text = cut.decode("utf-8", "ignore" if is_cut else "strict")
    except UnicodeDecodeError:
        text = "\0"
    if any(ord(char) < 32 and char not in "\t\r\n" for char in text):
        found: dict[str, Any] = {"kind": "binary", "base64": base64.b64encode(cut).decode()}
        if len(data) > 5 and data[0] == 0:
            found["schema"] = f"schema {int.from_bytes(data[1:5], 'big')}"
    else:
        found = {"kind": "json" if not is_cut and _is_json(text) else "text", "text": text}
    return {**found, "bytes": len(data), **({"cut": True} if is_cut else {})}


def _shown_decoded(data: bytes, decoded: Decoded) -> dict[str, Any]:
    if decoded.problem:
        cut = bytes(data[:SHOWN_BYTES])
        found = {"kind": "binary", "base64": base64.b64encode(cut).decode(), "problem": decoded.problem}
        return {**found, **({"cut": True} if len(data) > len(cut) else {})}
    text = dumps(decoded.value)
    if len(text) > SHOWN_BYTES:
        return {"kind": "text", "text": text[:SHOWN_BYTES], "cut": True}
    return {"kind": "json", "text": text}


def _is_json(text: str) -> bool:
    if text[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _plain(data: Mapping[str, Any], decoded: Decoded | None = None) -> Any:
    if decoded is not None:
        return decoded.value
    text = data.get("text")
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
