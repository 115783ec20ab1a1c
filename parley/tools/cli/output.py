"""Print data in the format that ``--output`` names: JSON, YAML, or an aligned table.

Every command that lists or describes passes plain data (mappings, lists, strings, numbers, None) to ``print_data``.
``parley/tools/cli/json_shapes.py`` documents the keys of each command. JSON and YAML contain the same data. A table
shows an object as lines of key and value, and a list of objects as rows. Lists of objects inside them become separate
tables below, whose first column names the object that contains them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from parley.tools.cli.colors import bold


class Format(StrEnum):
    """The values of ``--output``."""

    JSON = "json"
    YAML = "yaml"
    TABLE = "table"


_NOTHING: Final = "-"
_BETWEEN: Final = "  "


def print_data(data: Any, output_format: Format) -> None:
    """Print data to standard output in this format."""
    print(formatted(data, output_format), flush=True)


def formatted(data: Any, output_format: Format) -> str:
    """Return data in this format, without a newline at the end."""
    match output_format:
        case Format.JSON:
            return json.dumps(data, indent=2)
        case Format.YAML:
            return _as_yaml(data)
        case Format.TABLE:
            return "\n".join(table_lines(data))


def _as_yaml(data: Any) -> str:
    import yaml  # slow to import

    plain = json.loads(json.dumps(data))  # without enums and tuples, which YAML would mark with Python's types
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)
    return text.rstrip("\n").removesuffix("\n...")


def table_lines(data: Any) -> list[str]:
    """Return the lines of the tables that show this data."""
    if isinstance(data, Mapping):
        return list(_object_lines(data))
    if isinstance(data, list | tuple):
        return list(_list_lines(data, ""))
    return [_text(data)]


def _object_lines(data: Mapping[str, Any]) -> Iterator[str]:
    simple = {name: value for name, value in data.items() if not _holds_objects(value)}
    width = max((len(_heading(name)) for name in simple), default=0)
    for name, value in simple.items():
        yield f"{bold(_heading(name).ljust(width))}{_BETWEEN}{_text(value)}".rstrip()
    for name, value in data.items():
        if _holds_objects(value):
            yield from _list_lines(_entries(value) if isinstance(value, Mapping) else value, _heading(name))


def _list_lines(rows: Sequence[Any], title: str) -> Iterator[str]:
    """Yield the table of a list, below its title if it has one, and then the tables of the lists inside it."""
    if not all(isinstance(row, Mapping) for row in rows):
        yield from map(_text, rows)
        return
    if title:
        yield from ("", bold(title))
    nested = list(dict.fromkeys(name for row in rows for name, value in row.items() if _holds_objects(value)))
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in nested]
    if names:
        yield from _aligned(names, [[row.get(name) for name in names] for row in rows])
    for name in nested:
        inner = [_inner_rows(row, names, row[name]) for row in rows if row.get(name)]
        merged = [each for part in inner for each in part]
        if merged:
            yield from _list_lines(merged, _heading(name))


def _inner_rows(row: Mapping[str, Any], names: Sequence[str], value: Any) -> list[Mapping[str, Any]]:
    """Return the objects in a field of a row, each preceded by the row's first simple field."""
    whole = {names[0]: row.get(names[0])} if names else {}
    if isinstance(value, Mapping):
        return [{**whole, **each} for each in _entries(value)]
    return [{**whole, **each} for each in value]


def _entries(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a mapping that contains objects as rows. The mapping is either one object, or objects by name."""
    if all(isinstance(each, Mapping) for each in value.values()):
        return [{"name": name, **each} for name, each in value.items()]
    return [value]


def _holds_objects(value: Any) -> bool:
    """Return True if the value needs a separate table: a list of objects, or an object that contains such values."""
    if isinstance(value, Mapping):
        return any(isinstance(each, Mapping) or _holds_objects(each) for each in value.values())
    return isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value)


def _aligned(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    cells = [[_text(value) for value in row] for row in rows]
    headings = [_heading(name) for name in names]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    is_number = [
        all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in column)
        for column in (zip(*rows, strict=True) if rows else [()] * len(names))
    ]

    def line(texts: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, is_number, strict=True)
        )
        return _BETWEEN.join(padded).rstrip()

    yield bold(line(headings))
    yield from map(line, cells)


def _heading(name: str) -> str:
    """Format a key as a heading: ``currentOffset`` becomes ``CURRENT-OFFSET``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).replace("_", "-").upper()


def _text(value: Any) -> str:
    match value:
        case None | "" | [] | ():
            return _NOTHING
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.10g}"
        case Mapping():
            return ",".join(_pair(name, each) for name, each in value.items()) or _NOTHING
        case list() | tuple():
            return ",".join(map(_text, value))
        case _:
            return " ".join(str(value).split("\n"))


def _pair(name: str, value: Any) -> str:
    return f"{name}({_text(value)})" if isinstance(value, list | tuple) else f"{name}={_text(value)}"
