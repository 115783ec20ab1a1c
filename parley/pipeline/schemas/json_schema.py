"""JSON schemas, parsed with their references. The canonical form is JSON without white space.

Rules: a ``$ref`` names a place in the same schema, an ``$id`` in it, or a reference. Nothing is ever fetched from
elsewhere: any other ``$ref`` is an error. The drafts are those of the library ``jsonschema``; a schema that names none
is of draft 7.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parley.pipeline.schemas.model import BadSchema, Loader, Schema, closure
from parley.pipeline.values import json_text


@dataclass(frozen=True, slots=True)
class ParsedJson:
    """The parsed schema, and the resolver of its references."""

    schema: Any
    resolver: Any
    """A resolver of the library ``referencing``, whose base is the schema."""
    registry: Any
    """The schema and its references, for validators."""


def parsed(schema: Schema, load: Loader) -> ParsedJson:
    """Parse and check the schema. Raises BadSchema."""
    import jsonschema.exceptions
    import referencing.exceptions
    from jsonschema.validators import Draft7Validator, validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    def resource(text: str) -> Any:
        contents = _json(text)
        validator_for(contents, default=Draft7Validator).check_schema(contents)
        return Resource.from_contents(contents, default_specification=DRAFT7)

    try:
        others = {name: resource(one.text) for name, one in closure(schema, load).items()}
        own = resource(schema.text)
        base = own.id() or ""
        registry: Any = Registry().with_resources([*others.items(), (base, own)])
        made = ParsedJson(own.contents, registry.resolver(base), registry)
        _check_references(made.schema, made.resolver)
    except jsonschema.exceptions.SchemaError as error:
        raise BadSchema(f"Invalid JSON schema: {error.message[:500]} at {error.json_path}") from None
    except referencing.exceptions.Unresolvable as error:
        raise BadSchema(f"Invalid JSON schema: $ref {error.ref!r} cannot be resolved") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadSchema(f"Invalid JSON schema: {error or type(error).__name__}") from None
    return made


def canonical(schema: Schema) -> str:
    """Return the schema's text without white space. The keys keep their order, as in Java's library.

    Raises BadSchema if a number in it is not finite: other clients could not parse the text.
    """
    return json.dumps(_json(schema.text, json_text.loads), separators=(",", ":"), ensure_ascii=False)


def _json(text: str, loads: Callable[[str], Any] = json.loads) -> Any:
    try:
        found = loads(text)
    except json_text.NotFinite as error:
        raise BadSchema(f"Invalid JSON schema: {error}") from None
    except (ValueError, RecursionError):
        raise BadSchema("Invalid JSON schema: it is not JSON") from None
    if not isinstance(found, dict | bool):
        raise BadSchema("Invalid JSON schema: it must be an object or a boolean")
    return found


def _check_references(node: Any, resolver: Any) -> None:
    """Raise Unresolvable if a ``$ref`` cannot be resolved."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            resolver.lookup(node["$ref"])
        for key, one in node.items():
            if key not in ("enum", "const", "default", "examples"):
                _check_references(one, resolver)
    elif isinstance(node, list):
        for one in node:
            _check_references(one, resolver)
