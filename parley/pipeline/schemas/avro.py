"""Avro schemas: parsed with their references, and written in the canonical form of Java's ``Schema.toString``.

In the canonical form, the attributes of a schema are in a fixed order, without white space; a name omits the namespace
that encloses it; the order of a field appears only if it is not ascending. Other attributes keep their order. Decisions
only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from parley.pipeline.schemas.model import BadSchema, Loader, Schema, closure
from parley.pipeline.values import json_text

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_OF_PROTOCOLS: Final = ("error_union", "request")
"""Types that occur only in protocols, but that the library ``avro`` accepts in schemas."""
_OWN: Final = frozenset({"type", "name", "namespace", "doc", "aliases", "fields", "symbols", "size", "items", "values"})
_OWN_OF_FIELD: Final = frozenset({"name", "type", "doc", "default", "order", "aliases"})


def parsed(schema: Schema, load: Loader) -> Any:
    """Parse the schema and its references. Returns a tree of the library ``avro``. Raises BadSchema."""
    import avro.errors
    import avro.name
    import avro.schema

    names = avro.name.Names(validate_names=True)
    made: Any = None
    for one in [*closure(schema, load).values(), schema]:
        try:
            made = avro.schema.make_avsc_object(_json(one.text), names)
        except (avro.errors.AvroException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadSchema(f"Invalid Avro schema: {error or type(error).__name__}") from None
    return made


def canonical(schema: Schema) -> str:
    """Return the text that Java's library would write for a schema that has been parsed before.

    Raises BadSchema, for example for a number that is not finite: other clients could not parse the text.
    """
    try:
        found = _json(schema.text, json_text.loads)
    except BadSchema as error:
        raise BadSchema(f"Invalid Avro schema: {error}") from None
    return json.dumps(_canonical(found, ""), separators=(",", ":"), ensure_ascii=False)


def expanded(schema: Schema, load: Loader, names: dict[str, Any] | None = None) -> Any:
    """Return the schema as fastavro parses it. Raises BadSchema.

    Adds all named types, including those of references, to ``names``.
    """
    import fastavro

    names = {} if names is None else names
    made: Any = None
    for one in [*closure(schema, load).values(), schema]:
        try:
            made = fastavro.parse_schema(_json(one.text), named_schemas=names, _write_hint=False)
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, ValueError, KeyError) as error:
            raise BadSchema(f"The Avro schema cannot be used: {error}") from None
        except (TypeError, AttributeError, RecursionError) as error:
            raise BadSchema(f"The Avro schema cannot be used: {type(error).__name__}") from None
    return made


def without_logical(
    node: Any, names: Mapping[str, Any], dropped: Collection[str] | None = None, seen: set[str] | None = None
) -> Any:
    """Return an expanded schema without logical types or, if ``dropped`` is given, without those.

    A name in ``names`` is replaced by its type where it occurs first. ``seen`` contains the names that were replaced.
    """
    seen = set() if seen is None else seen
    if isinstance(node, list):
        return [without_logical(one, names, dropped, seen) for one in node]
    if isinstance(node, str):
        is_known = node in PRIMITIVES or node in seen
        return node if is_known else without_logical(names[node], names, dropped, seen)
    if node["type"] in NAMED:
        if node["name"] in seen:
            return node["name"]
        seen.add(node["name"])
    drops = dropped is None or node.get("logicalType") in dropped
    made = {key: value for key, value in node.items() if key != "logicalType" or not drops}
    if "fields" in node:
        made["fields"] = [{**one, "type": without_logical(one["type"], names, dropped, seen)} for one in node["fields"]]
    for key in ("items", "values"):
        if key in node:
            made[key] = without_logical(node[key], names, dropped, seen)
    if not isinstance(node["type"], str):
        made["type"] = without_logical(node["type"], names, dropped, seen)
    return made


def _json(text: str, loads: Callable[[str], Any] = json.loads) -> Any:
    """Parse the text as JSON. Raises BadSchema with the reason only; the caller adds to which schema it applies."""
    try:
        return loads(text)
    except json_text.NotFinite as error:
        raise BadSchema(str(error)) from None
    except (ValueError, RecursionError):
        if text.strip() in PRIMITIVES:  # as Java's parser reads it
            return text.strip()
        raise BadSchema("it is not JSON") from None


def _canonical(node: Any, space: str) -> Any:
    if isinstance(node, str):
        return _relative(*_split(node, space), space) if node not in PRIMITIVES else node
    if isinstance(node, list):
        return [_canonical(one, space) for one in node]
    kind = node["type"]
    if kind in _OF_PROTOCOLS:
        raise BadSchema(f"Invalid Avro schema: the type {kind} is only allowed in protocols")
    if isinstance(kind, str) and kind in NAMED:
        return _named(node, kind, space)
    made: dict[str, Any] = {"type": kind}
    if kind == "array":
        made["items"] = _canonical(node["items"], space)
    elif kind == "map":
        made["values"] = _canonical(node["values"], space)
    elif not isinstance(kind, str) or kind not in PRIMITIVES:
        return _canonical(kind, space)
    made.update(_others(node, _OWN))
    return kind if len(made) == 1 else made


def _named(node: Mapping[str, Any], kind: str, space: str) -> dict[str, Any]:
    own, name = _split(node["name"], node.get("namespace", space) or "")
    made: dict[str, Any] = {"type": kind, "name": name}
    if own != space:
        made["namespace"] = own
    if "doc" in node:
        made["doc"] = node["doc"]
    if kind in ("record", "error"):
        made["fields"] = [_field(one, own) for one in node["fields"]]
    elif kind == "enum":
        made["symbols"] = node["symbols"]
    else:
        made["size"] = node["size"]
    made.update(_others(node, _OWN))
    if node.get("aliases"):
        made["aliases"] = [_relative(*_split(one, own), own) for one in node["aliases"]]
    return made


def _field(node: Mapping[str, Any], space: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": node["name"], "type": _canonical(node["type"], space)}
    made.update({name: node[name] for name in ("doc", "default") if name in node})
    if node.get("order", "ascending") != "ascending":
        made["order"] = node["order"]
    if node.get("aliases"):
        made["aliases"] = node["aliases"]
    return {**made, **_others(node, _OWN_OF_FIELD)}


def _others(node: Mapping[str, Any], own: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name not in own}


def _split(name: str, space: str) -> tuple[str, str]:
    """Return the namespace and the simple name of ``name``. A name with dots contains its own namespace; otherwise it
    is ``space``.
    """
    before, dot, last = name.rpartition(".")
    return (before, last) if dot else (space, name)


def _relative(own: str, name: str, space: str) -> str:
    return name if own == space or not own else f"{own}.{name}"
