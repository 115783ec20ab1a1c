"""Schemas that no library can read are rejected as the client's error, not reported as a bug."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parley.pipeline.registry import decisions
from parley.pipeline.registry.compatibility import Level
from parley.pipeline.registry.errors import RegistryError
from parley.pipeline.registry.state import State, Version
from parley.pipeline.schemas.model import Schema, SchemaType

DRAFT3 = {"$schema": "http://json-schema.org/draft-03/schema#"}
DRAFT7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {**DRAFT3, "type": "object", "properties": {"a": {"type": "string"}}},
            {**DRAFT3, "type": "object", "required": True},
        ),
        ({**DRAFT3, "type": "object"}, {**DRAFT3, "anyOf": 5}),
        ({**DRAFT3, "type": "array", "items": {}}, {**DRAFT3, "type": "array", "prefixItems": 5, "contains": 9}),
        ({**DRAFT7, "type": "object"}, {**DRAFT7, "type": "object", "dependentRequired": 5}),
        ({**DRAFT7, "type": "object"}, {**DRAFT7, "type": "object", "unevaluatedProperties": 5}),
    ],
)
def test_comparing(before: Any, after: Any, caplog: pytest.LogCaptureFixture) -> None:
    state = State()
    old, new = (decisions.canonical(Schema(SchemaType.JSON, json.dumps(one)), state.load) for one in (before, after))
    with pytest.raises(RegistryError) as raised:
        decisions.check(state, new, [Version("s", 1, 1, old)], Level.BACKWARD)
    assert raised.value.code == 42201
    assert [one.exc_info for one in caplog.records] == [None]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "a", "aliases": [5], "fields": []},
        {"type": "error_union", "declared_errors": ["int"]},
        {"type": "request", "fields": []},
        {"type": "array", "items": {"type": "error_union", "declared_errors": ["int"]}},
    ],
)
def test_registering_avro(schema: Any) -> None:
    with pytest.raises(RegistryError) as raised:
        decisions.canonical(Schema(SchemaType.AVRO, json.dumps(schema)), State().load)
    assert raised.value.code == 42201
