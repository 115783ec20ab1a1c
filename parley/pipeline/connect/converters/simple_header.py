"""Headers as text, read as the narrowest type that fits (Kafka's ``SimpleHeaderConverter``, KIP-145)."""

from __future__ import annotations

from parley.pipeline.connect.converters import HeaderConverter
from parley.pipeline.connect.data import BYTES
from parley.pipeline.connect.records import Header
from parley.pipeline.connect.text_values import parse, to_text


class SimpleHeaderConverter(HeaderConverter):
    def from_header(self, topic: str, header: Header) -> bytes | None:
        return None if header.value is None else to_text(header.value).encode()

    def to_header(self, topic: str, key: str, data: bytes | None) -> Header:
        if data is None:
            return Header(key, None)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return Header(key, data, BYTES)
        found = parse(text)
        return Header(key, found.value, found.schema)
