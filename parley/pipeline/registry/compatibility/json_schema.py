"""Decides which changes to a JSON schema keep data valid, by the strict rules of Confluent's registry.

Schemas are first brought into a normal form (``_kind_of``): a list of types becomes an ``anyOf``, and keywords of
several kinds become an ``allOf`` with one part for each kind. A pair of schemas counts as compatible while it is being
compared, so that recursion ends. If the pair is incompatible, the comparison that is in progress finds that. Every
reported difference makes data unreadable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from parley.pipeline.registry.compatibility.comparison_limits import DIFFERENCES_MAX, Steps
from parley.pipeline.schemas.json_schema import parsed
from parley.pipeline.schemas.model import Loader, Schema

_PATTERN_BYTES_MAX: Final = 1 << 20
"""The memory limit for one regular expression; the library rejects an expression that needs more."""
_COMBINED: Final = ("allOf", "anyOf", "oneOf")
_OF_TYPE: Final = {
    "string": ("maxLength", "minLength", "pattern", "format"),
    "number": ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf"),
    "array": ("items", "prefixItems", "additionalItems", "maxItems", "minItems", "uniqueItems", "contains"),
    "object": (
        "properties", "required", "additionalProperties", "maxProperties", "minProperties", "patternProperties",
        "dependencies", "dependentRequired", "dependentSchemas",
    ),
}  # fmt: skip
_UPPER: Final = {
    "string": ("maxLength",),
    "number": ("maximum", "exclusiveMaximum"),
    "array": ("maxItems",),
    "object": ("maxProperties",),
}
_LOWER: Final = {
    "string": ("minLength",),
    "number": ("minimum", "exclusiveMinimum"),
    "array": ("minItems",),
    "object": ("minProperties",),
}
_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def unreadable(reader: Schema, writer: Schema, load: Loader, steps: Steps) -> list[str]:
    """Return the reasons why data of the writer's schema may be invalid in the reader's. Raises BadSchema."""
    before, after = parsed(writer, load), parsed(reader, load)
    found = _Comparison(steps).differences((before.schema, before.resolver), (after.schema, after.resolver), "#")
    return list(islice(found, DIFFERENCES_MAX))


_Part = tuple[Any, Any]
"""A schema, and the resolver of its references."""


def _kind_of(part: _Part) -> tuple[str, Any, Any]:
    """Return the kind of a schema in normal form, the keywords to compare, and the resolver of their references."""
    schema, resolver = part
    for _ in range(100):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        found = resolver.lookup(schema["$ref"])
        schema, resolver = found.contents, found.resolver
    if schema is True:
        return "any", {}, resolver
    if schema is False:
        return "none", {}, resolver
    parts = list(_parts(schema))
    if not parts:
        return "any", schema, resolver
    kind, own = parts[0] if len(parts) == 1 else ("allOf", [one for _, one in parts])
    return kind, own, resolver


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _COMBINED:
        if name in schema:
            yield name, list({json.dumps(one, sort_keys=True): one for one in schema[name]}.values())
    if "not" in schema:
        yield "not", schema["not"]
    if "const" in schema:
        yield "enum", {"enum": [schema["const"]]}
    elif "enum" in schema:
        yield "enum", {"enum": schema["enum"]}
    types = schema.get("type")
    rest = {key: value for key, value in schema.items() if key not in (*_COMBINED, "not", "const", "enum")}
    if isinstance(types, list):
        yield "anyOf", [{**rest, "type": one} for one in types]
    elif types is not None:
        yield ("number" if types == "integer" else types), rest
    else:
        yield from ((name, {**rest, "type": name}) for name, words in _OF_TYPE.items() if any(w in rest for w in words))


class _Comparison:
    """One comparison of two schemas, with a limited number of steps."""

    def __init__(self, steps: Steps) -> None:
        self._open: set[tuple[int, int]] = set()
        self._kept: list[Any] = []
        self._kinds: dict[tuple[int, int], tuple[str, Any, Any]] = {}
        self._steps = steps

    def fits(self, before: _Part, after: _Part) -> bool:
        """Return True if everything that is valid under the earlier schema is valid under the later one."""
        return next(self.differences(before, after, ""), None) is None

    def differences(self, before: _Part, after: _Part, path: str) -> Iterator[str]:
        """Yield the differences that make valid data of the earlier schema invalid under the later one. Raises
        BadSchema."""
        self._steps.spend()
        pair = (id(before[0]), id(after[0]))
        if pair in self._open:
            return
        self._open.add(pair)
        self._kept.append((before, after))  # so that no other object gets its id
        try:
            yield from self._compare(before, after, path)
        finally:
            self._open.discard(pair)

    def _kind(self, part: _Part) -> tuple[str, Any, Any]:
        """Return the schema's normal form (``_kind_of``). It is computed once, because a schema may be compared many
        times.
        """
        key = (id(part[0]), id(part[1]))
        if key not in self._kinds:
            self._kept.append(part)  # so that no other object gets its id
            self._kinds[key] = _kind_of(part)
        return self._kinds[key]

    def _compare(self, before: _Part, after: _Part, path: str) -> Iterator[str]:
        (kind, old, old_at), (new_kind, new, new_at) = self._kind(before), self._kind(after)
        if kind == "none" or new_kind == "any":
            return
        is_sum = new_kind in ("anyOf", "oneOf") or (new_kind == "allOf" and len(new) == 1)
        is_product = kind == "allOf" or (kind in _COMBINED and len(old) == 1)
        if kind not in _COMBINED and is_sum and any(self.fits(before, (one, new_at)) for one in new):
            return
        if new_kind not in _COMBINED and is_product and any(self.fits((one, old_at), after) for one in old):
            return
        if kind in _COMBINED and new_kind in _COMBINED:
            yield from self._combined(kind, (old, old_at), new_kind, (new, new_at), path)
        elif kind != new_kind:
            yield f"TYPE_CHANGED at {path}"
        elif kind == "enum":
            self._steps.spend(0, light=len(old["enum"]) * len(new["enum"]) // 10)
            if any(one not in new["enum"] for one in old["enum"]):
                yield f"ENUM_ARRAY_NARROWED at {path}/enum"
        elif kind == "not":
            if not self.fits((new, new_at), (old, old_at)):
                yield f"NOT_TYPE_EXTENDED at {path}/not"
        else:
            yield from self._typed(kind, (old, old_at), (new, new_at), path)

    def _combined(self, kind: str, before: _Part, new_kind: str, after: _Part, path: str) -> Iterator[str]:
        (old, old_at), (new, new_at) = before, after
        is_same = kind == new_kind or new_kind == "anyOf"
        singles = (len(old) == 1 and (len(new) == 1 or new_kind == "oneOf")) or (len(new) == 1 and kind == "allOf")
        if not is_same and not singles:
            yield f"COMBINED_TYPE_CHANGED at {path}"
            return
        if len(old) < len(new) and new_kind == "allOf":
            yield f"PRODUCT_TYPE_EXTENDED at {path}/allOf"
        if len(old) > len(new) and kind != "allOf":
            yield f"SUM_TYPE_NARROWED at {path}/{kind}"
        edges = {
            number: [at for at, other in enumerate(new) if self.fits((one, old_at), (other, new_at))]
            for number, one in enumerate(old)
        }
        if _matched(edges) < min(len(old), len(new)):
            yield f"COMBINED_TYPE_SUBSCHEMAS_CHANGED at {path}/{kind}"

    def _typed(self, kind: str, before: _Part, after: _Part, path: str) -> Iterator[str]:
        (old, _), (new, _) = before, after
        for name in _UPPER.get(kind, ()):
            yield from _bound(name, old.get(name), new.get(name), path, falls=True)
        for name in _LOWER.get(kind, ()):
            yield from _bound(name, old.get(name), new.get(name), path, falls=False)
        if kind == "string":
            if new.get("pattern") not in (None, old.get("pattern")):
                yield f"PATTERN_{'ADDED' if old.get('pattern') is None else 'CHANGED'} at {path}/pattern"
        elif kind == "number":
            if new.get("type") == "integer" and old.get("type") != "integer":
                yield f"TYPE_NARROWED at {path}"
            yield from _multiple(old.get("multipleOf"), new.get("multipleOf"), path)
        elif kind == "array":
            if new.get("uniqueItems") and not old.get("uniqueItems"):
                yield f"UNIQUE_ITEMS_ADDED at {path}/uniqueItems"
            yield from self._contains(before, after, path)
            yield from self._items(before, after, path)
        elif kind == "object":
            yield from self._required(old, new, path)
            yield from self._properties(before, after, path)
            yield from self._dependencies(before, after, path)
            yield from self._additional(_extra(before), _extra(after), f"{path}/additionalProperties", "PROPERTIES")

    # Arrays.

    def _contains(self, before: _Part, after: _Part, path: str) -> Iterator[str]:
        old, new = before[0].get("contains"), after[0].get("contains")
        if new is not None and (old is None or not self.fits((old, before[1]), (new, after[1]))):
            yield f"CONTAINED_ITEM_SCHEMA_{'ADDED' if old is None else 'CHANGED'} at {path}/contains"

    def _items(self, before: _Part, after: _Part, path: str) -> Iterator[str]:
        (old, old_rest), (new, new_rest) = _tuple_of(before), _tuple_of(after)
        for number in range(max(len(old), len(new))):
            at = f"{path}/items/{number}"
            if number < len(old) and number < len(new):
                yield from self.differences(old[number], new[number], at)
            elif number < len(old):
                if not self.fits(old[number], new_rest):
                    model = "FROM_CLOSED" if new_rest[0] is False else "NOT_COVERED_BY_PARTIALLY_OPEN"
                    yield f"ITEM_REMOVED_{model}_CONTENT_MODEL at {at}"
            elif not self.fits(old_rest, new[number]):
                is_open = self._kind(old_rest)[0] == "any"
                yield f"ITEM_ADDED_{'TO_OPEN' if is_open else 'NOT_COVERED_BY_PARTIALLY_OPEN'}_CONTENT_MODEL at {at}"
        if old or new:
            yield from self._additional(old_rest, new_rest, f"{path}/additionalItems", "ITEMS")
        else:
            yield from self.differences(old_rest, new_rest, f"{path}/items")

    # Objects.

    def _required(self, old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
        needed = set(old.get("required", ()))
        for name in new.get("required", ()):
            given = new.get("properties", {}).get(name)
            is_old = name in old.get("properties", {})
            if name in needed or (isinstance(given, dict) and "default" in given):
                continue
            if given is None or is_old:
                yield f"REQUIRED_ATTRIBUTE_ADDED at {path}/required/{name}"
            else:
                yield f"REQUIRED_PROPERTY_ADDED at {path}/properties/{name}"

    def _properties(self, before: _Part, after: _Part, path: str) -> Iterator[str]:
        old, new = before[0].get("properties", {}), after[0].get("properties", {})
        for name in dict.fromkeys([*old, *new]):
            at = f"{path}/properties/{name}"
            if name in old and name in new:
                yield from self.differences((old[name], before[1]), (new[name], after[1]), at)
            elif name in old:
                unfit = [one for one in self._open_for(after, name) if not self.fits((old[name], before[1]), one)]
                for rest in unfit[:1]:
                    model = "FROM_CLOSED" if rest[0] is False else "NOT_COVERED_BY_PARTIALLY_OPEN"
                    yield f"PROPERTY_REMOVED_{model}_CONTENT_MODEL at {at}"
            else:
                unfit = [one for one in self._open_for(before, name) if not self.fits(one, (new[name], after[1]))]
                for rest in unfit[:1]:
                    is_open = self._kind(rest)[0] == "any"
                    model = "TO_OPEN" if is_open else "NOT_COVERED_BY_PARTIALLY_OPEN"
                    yield f"PROPERTY_ADDED_{model}_CONTENT_MODEL at {at}"

    def _open_for(self, part: _Part, name: str) -> Iterator[_Part]:
        """Yield the schema that applies to a property that ``properties`` does not name.

        If a pattern cannot be evaluated, several schemas may apply, and all are yielded.
        """
        for pattern, schema in part[0].get("patternProperties", {}).items():
            self._steps.spend(light=len(pattern) + len(name))
            expression = _expression(pattern)
            if expression is None or expression.search(name):
                yield schema, part[1]
            if expression is not None and expression.search(name):
                return
        yield _extra(part)

    def _dependencies(self, before: _Part, after: _Part, path: str) -> Iterator[str]:
        old, new = _dependencies_of(before[0]), _dependencies_of(after[0])
        for name, given in new.items():
            at, known = f"{path}/dependencies/{name}", old.get(name)
            if isinstance(given, list):
                if not isinstance(known, list) or not set(given) <= set(known):
                    yield f"DEPENDENCY_ARRAY_{'CHANGED' if isinstance(known, list) else 'ADDED'} at {at}"
            elif known is None or isinstance(known, list):
                yield f"DEPENDENCY_SCHEMA_ADDED at {at}"
            else:
                yield from self.differences((known, before[1]), (given, after[1]), at)

    def _additional(self, old: _Part, new: _Part, path: str, what: str) -> Iterator[str]:
        kinds = self._kind(old)[0], self._kind(new)[0]
        if kinds[1] == "none" and kinds[0] != "none":
            yield f"ADDITIONAL_{what}_REMOVED at {path}"
        elif kinds[0] == "any" and kinds[1] != "any":
            yield f"ADDITIONAL_{what}_NARROWED at {path}"
        else:
            yield from self.differences(old, new, path)


def _matched(edges: Mapping[int, list[int]]) -> int:
    """Return the size of the largest matching: the most pairs in which no element occurs twice.

    ``edges`` lists the possible partners of each element of the first side.
    """
    taken: dict[int, int] = {}

    def place(number: int, tried: set[int]) -> bool:
        for other in edges[number]:
            if other not in tried:
                tried.add(other)
                if other not in taken or place(taken[other], tried):
                    taken[other] = number
                    return True
        return False

    return sum(place(number, set()) for number in edges)


def _bound(name: str, old: Any, new: Any, path: str, *, falls: bool) -> Iterator[str]:
    """Yield a difference if the limit ``name`` was added or became stricter. With ``falls``, a smaller value is
    stricter.
    """
    if isinstance(new, bool) or isinstance(old, bool):  # draft 4: whether the limit itself is excluded
        new, old, falls = (0 if new else 1), (0 if old else 1), True
    word = _WORDS.sub("_", name).upper()
    if new is not None and old is None:
        yield f"{word}_ADDED at {path}/{name}"
    elif new is not None and (new < old if falls else new > old):
        yield f"{word}_{'DECREASED' if falls else 'INCREASED'} at {path}/{name}"


def _multiple(old: Any, new: Any, path: str) -> Iterator[str]:
    if new is None:
        return
    if old is None:
        yield f"MULTIPLE_OF_ADDED at {path}/multipleOf"
    elif (Fraction(str(old)) / Fraction(str(new))).denominator != 1:
        yield f"MULTIPLE_OF_CHANGED at {path}/multipleOf"


def _tuple_of(part: _Part) -> tuple[list[_Part], _Part]:
    """Return the schemas of the first items, and the schema of all other items."""
    schema, resolver = part
    items = schema.get("prefixItems", schema.get("items"))
    if isinstance(items, list):
        rest = schema.get("items" if "prefixItems" in schema else "additionalItems", True)
        return [(one, resolver) for one in items], (rest, resolver)
    return [], (True if items is None else items, resolver)


def _extra(part: _Part) -> _Part:
    """Return the schema of properties that the schema does not name."""
    schema = part[0]
    return schema.get("additionalProperties", schema.get("unevaluatedProperties", True)), part[1]


@lru_cache(64)
def _expression(pattern: str) -> Any:
    """Return the compiled expression, which matches in linear time; None if the library does not support it.

    For None, the caller must assume that the expression matches anything.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES_MAX
    try:
        return re2.compile(pattern, options=options)
    except re2.error:
        return None


def _dependencies_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    names = ("dependencies", "dependentRequired", "dependentSchemas")
    found = {key: value for name in names for key, value in schema.get(name, {}).items()}
    return {key: [value] if isinstance(value, str) else value for key, value in found.items()}  # a name in draft 3
