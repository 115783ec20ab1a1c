"""Checks Avro's schema resolution. Incompatibilities have the names that Java's library uses.

A pair of schemas counts as compatible while it is being compared, so that recursion ends. If the pair is incompatible,
the comparison that is in progress finds that. Each pair is compared once; later only its first difference is reported
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from parley.pipeline.registry.compatibility.comparison_limits import DIFFERENCES_MAX, Steps
from parley.pipeline.schemas.avro import PRIMITIVES, parsed
from parley.pipeline.schemas.model import Loader, Schema

_Difference = tuple[str, str, str]
"""The kind, the place and the explanation of a difference."""
_PROMOTED: Final = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
"""For each type in a reader's schema: the other types whose data it can read."""
_RECORDS: Final = ("record", "error")


def unreadable(reader: Schema, writer: Schema, load: Loader, steps: Steps) -> list[str]:
    """Return the reasons why the reader's schema cannot read data of the writer's schema. Raises BadSchema."""
    after, before = parsed(reader, load), parsed(writer, load)
    found = list(islice(_Comparison(steps).differences(after, before, ""), DIFFERENCES_MAX))
    if not found:
        return []
    places, reasons = sorted({place or "/" for _, place, _ in found}), sorted({reason for _, _, reason in found})
    return [f"{', '.join(kind for kind, _, _ in found)} at {', '.join(places)}: {'; '.join(reasons)}"]


class _Comparison:
    """One comparison of two schema trees of the library ``avro``, with a limited number of steps."""

    def __init__(self, steps: Steps) -> None:
        self._known: dict[tuple[int, int], _Difference | None] = {}
        self._steps = steps

    def differences(self, reader: Any, writer: Any, path: str) -> Iterator[_Difference]:
        """Yield the reasons why the reader cannot read some of the writer's data. Raises BadSchema."""
        self._steps.spend()
        pair = (id(reader), id(writer))
        if pair in self._known:
            known = self._known[pair]
            if known is not None:
                yield known
            return
        self._known[pair] = None
        for one in self._compare(reader, writer, path):
            self._known[pair] = self._known[pair] or one
            yield one

    def _fits(self, reader: Any, writer: Any) -> bool:
        return next(self.differences(reader, writer, ""), None) is None

    def _compare(self, reader: Any, writer: Any, path: str) -> Iterator[_Difference]:
        kind, given = reader.type, writer.type
        if kind == given == "union":
            for at, branch in enumerate(writer.schemas):
                if not self._fits(reader, branch):
                    reason = f"reader union lacking writer type: {branch.type.upper()}"
                    yield "MISSING_UNION_BRANCH", f"{path}/{at}", reason
        elif given == "union":
            for branch in writer.schemas:
                yield from self.differences(reader, branch, path)
        elif kind == "union":
            if not any(self._fits(branch, writer) for branch in reader.schemas):
                yield "MISSING_UNION_BRANCH", path, f"reader union lacking writer type {given}"
        elif kind in _RECORDS and given in _RECORDS:
            yield from self._names(reader, writer, path)
            yield from self._fields(reader, writer, path)
        elif kind != given:
            if given not in _PROMOTED.get(kind, ()):
                yield "TYPE_MISMATCH", path, f"reader type: {kind} not compatible with writer type: {given}"
        elif kind == "array":
            yield from self.differences(reader.items, writer.items, f"{path}/items")
        elif kind == "map":
            yield from self.differences(reader.values, writer.values, f"{path}/values")
        elif kind not in PRIMITIVES:
            yield from self._names(reader, writer, path)
            yield from (self._symbols if kind == "enum" else _sizes)(reader, writer, path)

    def _names(self, reader: Any, writer: Any, path: str) -> Iterator[_Difference]:
        aliases = _aliases(reader)
        self._steps.spend(0, light=len(aliases))
        if reader.name != writer.name and writer.fullname not in aliases:
            yield "NAME_MISMATCH", f"{path}/name", f"expected: {writer.fullname}"

    def _symbols(self, reader: Any, writer: Any, path: str) -> Iterator[_Difference]:
        self._steps.spend(0, light=len(reader.symbols) + len(writer.symbols))
        known = set(reader.symbols)
        missing = [one for one in writer.symbols if one not in known]
        if missing and reader.props.get("default") not in known:
            yield "MISSING_ENUM_SYMBOLS", f"{path}/symbols", ", ".join(missing[:DIFFERENCES_MAX])

    def _fields(self, reader: Any, writer: Any, path: str) -> Iterator[_Difference]:
        self._steps.spend(0, light=len(writer.fields))
        given = {one.name: one for one in writer.fields}
        for at, field in enumerate(reader.fields):
            aliases = _aliases(field)
            self._steps.spend(light=len(aliases))
            found = next((given[name] for name in (field.name, *aliases) if name in given), None)
            place = f"{path}/fields/{at}"
            if found is not None:
                yield from self.differences(field.type, found.type, f"{place}/type")
            elif not field.has_default:
                yield "READER_FIELD_MISSING_DEFAULT_VALUE", place, field.name


def _sizes(reader: Any, writer: Any, path: str) -> Iterator[_Difference]:
    if reader.size != writer.size:
        yield "FIXED_SIZE_MISMATCH", f"{path}/size", f"expected: {writer.size}, found: {reader.size}"


def _aliases(part: Any) -> list[Any]:
    found = part.props.get("aliases")
    return found if isinstance(found, list) else []
