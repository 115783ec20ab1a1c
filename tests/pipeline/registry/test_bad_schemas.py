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


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SchemaType.JSON, '{"multipleOf":%s}'),
        (SchemaType.JSON, '{"type":"object","properties":{"a":{"examples":[{"b":%s}]}}}'),
        (SchemaType.JSON, '{"default":%s}'),
        (SchemaType.AVRO, '{"type":"record","name":"r","fields":[{"name":"a","type":"double","default":%s}]}'),
        (SchemaType.AVRO, '{"type":"string","note":[%s]}'),
    ],
)
def test_registering_a_number_that_is_not_finite(kind: SchemaType, text: str, number: str) -> None:
    """The registry once stored such a number as ``Infinity``, which is not JSON."""
    with pytest.raises(RegistryError) as raised:
        decisions.canonical(Schema(kind, text % number), State().load)
    assert raised.value.code == 42201
    assert "JSON" in str(raised.value) or "double" in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "stored", "next_one"),
    [
        (SchemaType.JSON, '{"multipleOf":Infinity}', '{"multipleOf":2}'),
        (SchemaType.JSON, '{"multipleOf":1e999}', '{"multipleOf":2}'),
        (
            SchemaType.AVRO,
            '{"type":"record","name":"r","fields":[{"name":"a","type":"double","default":NaN}]}',
            '{"type":"record","name":"r","fields":[{"name":"b","type":"string"}]}',
        ),
    ],
)
def test_a_stored_number_that_is_not_finite_does_not_block_the_subject(
    kind: SchemaType, stored: str, next_one: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = State()
    state.apply(*Version("s", 1, 1, Schema(kind, stored)).record())
    added = decisions.register(state, "s", Schema(kind, next_one), Level.FULL, number=None, version=None)
    assert (added.reply["version"], added.reply["id"]) == (2, 2)
    assert [each.message for each in caplog.records if "not comparing with version 1 of s" in each.message] != []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SchemaType.PROTOBUF, "message M{}" + "\n" * 550_000),
        (SchemaType.JSON, "[" + ",".join(['""'] * 230_000) + "]"),
        (SchemaType.JSON, '"' + "\u4e00" * 400_000 + '"'),
    ],
)
@pytest.mark.parametrize("number", [None, 7])
def test_a_schema_that_is_too_large_only_in_the_topic(kind: SchemaType, text: str, number: int | None) -> None:
    """The topic once rejected such a record, and the registry responded with 50001."""
    state = State()
    if number is not None:
        state.modes[None] = "IMPORT"
    assert len(text) < decisions.SCHEMA_CHARACTERS_MAX
    with pytest.raises(RegistryError) as raised:
        decisions.register(state, "s", Schema(kind, text), Level.NONE, number=number, version=None)
    assert (raised.value.status, raised.value.code) == (422, 42209)
