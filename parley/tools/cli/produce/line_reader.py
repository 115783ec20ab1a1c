"""Parse lines into records: Kafka's line reader with its properties."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, BinaryIO, Final

from parley.tools.cli.invocation import CommandError

READERS: Final = (
    "org.apache.kafka.tools.LineMessageReader",
    "kafka.tools.ConsoleProducer$LineMessageReader",
    "LineMessageReader",
)
"""The names of the only line reader: the current one, the one before Kafka 4, and the one without the package."""
_FLAGS: Final = ("parse_key", "parse_headers", "ignore_error")


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The properties of Kafka's line reader, with their defaults."""

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    ignore_error: bool = False

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LineFormat:
        """Read properties such as ``parse.key=true``. Ignores unknown ones with a warning.

        Raises ``CommandError`` if a separator is empty or two are equal.
        """
        values: dict[str, Any] = {}
        known = {one.name.replace("_", "."): one.name for one in fields(cls)}
        for name, text in properties.items():
            if name in known:
                flag = known[name] in _FLAGS
                values[known[name]] = text.strip().lower() == "true" if flag else text.encode()
            elif name != "topic":
                print(f"Warning: unknown reader property '{name}'. Available: {', '.join(known)}.", file=sys.stderr)
        form = cls(**values)
        form._check()
        return form

    def _check(self) -> None:
        """Raise ``CommandError`` if a separator is empty, or equal to another separator or to the null marker."""
        separators = {
            "headers.delimiter": self.headers_delimiter,
            "headers.separator": self.headers_separator,
            "headers.key.separator": self.headers_key_separator,
        }
        for name, one in {"key.separator": self.key_separator, **separators}.items():
            if not one:
                raise CommandError(f"{name} may not be empty.")
            if one == self.null_marker:
                raise CommandError(f"null.marker and {name} may not be equal.")
        if self.parse_headers and len(set(separators.values())) < len(separators):
            raise CommandError(f"{', '.join(separators)} may not be equal.")


@dataclass(frozen=True, slots=True)
class InputRecord:
    """The record that a line describes."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def parse_line(line: bytes, form: LineFormat, number: int) -> InputRecord:
    """Parse a line, whose number appears in errors. Raises ``CommandError`` if a separator is missing, unless errors
    are to be ignored."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    key: bytes | None = None
    rest = line
    if form.parse_headers:
        text, found, rest = _split(rest, form.headers_delimiter, form, number, "headers delimiter")
        if found and text != form.null_marker:
            headers = tuple(_header(part, form, number) for part in text.split(form.headers_separator))
    if form.parse_key:
        text, found, rest = _split(rest, form.key_separator, form, number, "key separator")
        key = (None if text == form.null_marker else text) if found else None
    return InputRecord(key, None if rest == form.null_marker else rest, headers)


def _split(line: bytes, separator: bytes, form: LineFormat, number: int, what: str) -> tuple[bytes, bool, bytes]:
    first, found, rest = line.partition(separator)
    if found:
        return first, True, rest
    if form.ignore_error:
        return b"", False, line
    raise CommandError(f"No {what} found on line number {number}: {line.decode(errors='replace')!r}")


def _header(text: bytes, form: LineFormat, number: int) -> tuple[str, bytes | None]:
    key, found, value = text.partition(form.headers_key_separator)
    if not found and not form.ignore_error:
        raise CommandError(f"No header key separator found in pair {text.decode(errors='replace')!r} on line {number}")
    return key.decode(errors="replace"), None if not found or value == form.null_marker else value


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of the input without newlines. Shows a prompt on a terminal."""
    prompt = stream.isatty()
    while True:
        if prompt:
            print(">", end="", file=sys.stderr, flush=True)
        line = stream.readline()
        if not line:
            return
        yield line.removesuffix(b"\n").removesuffix(b"\r")
