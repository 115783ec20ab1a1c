"""Decides which names a target's columns and fields can have. Other names would be cut off, or confused with each
other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyarrow import types

Path = tuple[str, ...]


def _itself(path: Path) -> Hashable:
    return path


@dataclass(frozen=True, slots=True)
class NameRule:
    """A target's rule for names."""

    forbids: Callable[[str], bool] = lambda name: False
    """A function that returns True if no column and no field can have the name."""
    known_as: Callable[[Path], Hashable] = _itself
    """A function that returns the identity of a column or field, by its path. The target cannot distinguish paths with
    the same identity.
    """

    def problem(self, kinds: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the names of these columns and their fields; None if nothing is. ``kinds`` maps
        columns to types.
        """
        seen: dict[Hashable, Path] = {}
        for path in _paths(kinds):
            if self.forbids(path[-1]):
                return f"the field {'.'.join(path)!r} has a name that cannot be a column's or a field's"
            other = seen.setdefault(self.known_as(path), path)
            if other != path:
                return f"the fields {'.'.join(other)!r} and {'.'.join(path)!r} would have the same name"
        return None


def _paths(kinds: Mapping[str, Any], before: Path = ()) -> Iterator[Path]:
    for name, kind in kinds.items():
        yield (*before, name)
        yield from _inside(kind, (*before, name))


def _inside(kind: Any, before: Path) -> Iterator[Path]:
    if types.is_struct(kind):
        yield from _paths({field.name: field.type for field in kind}, before)
    elif types.is_list(kind):
        yield from _inside(kind.value_type, (*before, "element"))
    elif types.is_map(kind):
        yield from _inside(kind.key_type, (*before, "key"))
        yield from _inside(kind.item_type, (*before, "value"))


def _folded(path: Path) -> Hashable:
    return tuple(name.casefold() for name in path)


def _dotted(path: Path) -> Hashable:
    return ".".join(path)


def _is_cut(name: str) -> bool:
    return "\0" in name


def _is_blank_or_cut(name: str) -> bool:
    return not name.strip() or "\0" in name


ANY_NAMES: Final = NameRule()
DELTA_NAMES: Final = NameRule(_is_cut, _folded)
ICEBERG_NAMES: Final = NameRule(_is_blank_or_cut, _dotted)
_POSTGRESQL_BYTES_MAX: Final = 63
"""The maximum length of a name. The server truncates longer names."""


def sql_names(dialect: str) -> NameRule:
    """Return the rule of a database, by SQLAlchemy's name for its dialect."""
    if dialect == "postgresql":
        return NameRule(lambda name: _is_blank_or_cut(name) or len(name.encode()) > _POSTGRESQL_BYTES_MAX)
    return NameRule(_is_blank_or_cut, _folded)
