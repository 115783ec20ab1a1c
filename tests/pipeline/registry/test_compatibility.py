"""Which changes of a schema each language allows. The expected verdicts are those of Confluent's registry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parley.pipeline.registry.compatibility import Level, comparison_limits, incompatibilities
from parley.pipeline.schemas.model import BadSchema, Reference, Schema, SchemaType


def no_reference(reference: Reference) -> Schema:
    raise BadSchema(f"{reference}")


def verdict(kind: SchemaType, before: str, after: str, level: Level = Level.BACKWARD) -> list[str]:
    """Return the names of the incompatibilities."""
    found = incompatibilities(Schema(kind, after), [Schema(kind, before)], level, no_reference)
    return [one.partition(" ")[0] for one in found]


def record(*fields: str) -> str:
    return f'{{"type":"record","name":"R","fields":[{",".join(fields)}]}}'


A, B = '{"name":"a","type":"int"}', '{"name":"b","type":"int"}'
B_DEFAULT = '{"name":"b","type":"int","default":0}'


@pytest.mark.parametrize(
    ("before", "after", "backward", "forward"),
    [
        (record(A), record(A, B_DEFAULT), True, True),
        (record(A), record(A, B), False, True),
        (record(A, B), record(A), True, False),
        ('"int"', '"long"', True, False),
        ('"int"', '"string"', False, False),
        ('["null","int"]', '["null","int","string"]', True, False),
        ('{"type":"enum","name":"E","symbols":["A"]}', '{"type":"enum","name":"E","symbols":["A","B"]}', True, False),
        ('{"type":"fixed","name":"F","size":2}', '{"type":"fixed","name":"F","size":3}', False, False),
    ],
)
def test_avro(before: str, after: str, backward: bool, forward: bool) -> None:
    assert (not verdict(SchemaType.AVRO, before, after)) is backward
    assert (not verdict(SchemaType.AVRO, before, after, Level.FORWARD)) is forward
    assert (not verdict(SchemaType.AVRO, before, after, Level.FULL)) is (backward and forward)


def test_a_record_may_refer_to_itself_and_have_other_names() -> None:
    def tree(name: str, more: str = "") -> str:
        itself = f'{{"name":"next","type":["null","{name}"]}}'
        return f'{{"type":"record","name":"{name}","fields":[{itself}{more}]}}'

    plain, aliased = tree("R"), tree("S").replace('"S",', '"S","aliases":["R"],', 1)
    assert verdict(SchemaType.AVRO, plain, plain) == []
    assert verdict(SchemaType.AVRO, plain, aliased) == []
    assert verdict(SchemaType.AVRO, plain, tree("S")) != []
    assert verdict(SchemaType.AVRO, plain, tree("R", f",{B}")) == ["READER_FIELD_MISSING_DEFAULT_VALUE"]


def test_the_comparison_of_large_unions_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_limits, "STEPS_MAX", 1000)
    branches = [f'{{"type":"record","name":"u{one}","fields":[]}}' for one in range(50)]
    before, after = f"[{','.join(branches)}]", f"[{','.join(reversed(branches))}]"
    with pytest.raises(BadSchema, match="too complex"):
        verdict(SchemaType.AVRO, before, after)


def test_all_the_earlier_versions_share_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_limits, "STEPS_MAX", 1000)
    schema = Schema(SchemaType.AVRO, record(*(f'{{"name":"f{one}","type":"int"}}' for one in range(100))))
    assert incompatibilities(schema, [schema] * 20, Level.BACKWARD, no_reference) == []
    with pytest.raises(BadSchema, match="too complex"):
        incompatibilities(schema, [schema] * 20, Level.BACKWARD_TRANSITIVE, no_reference)


def test_a_message_lists_at_most_a_hundred_differences() -> None:
    many = record(*(f'{{"name":"f{one}","type":"int"}}' for one in range(300)))
    (found,) = incompatibilities(
        Schema(SchemaType.AVRO, many), [Schema(SchemaType.AVRO, record())], Level.BACKWARD, no_reference
    )
    assert found.count("READER_FIELD_MISSING_DEFAULT_VALUE") == 100
    names = json.dumps({"type": "object", "required": [str(one) for one in range(300)]})
    assert len(verdict(SchemaType.JSON, '{"type":"object"}', names)) == 100


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def opened(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
DRAFT3 = {"$schema": "http://json-schema.org/draft-03/schema#", "type": "object"}
TREE = {"definitions": {"node": opened(next={"$ref": "#/definitions/node"})}, "$ref": "#/definitions/node"}


@pytest.mark.parametrize(
    ("before", "after", "problems"),
    [
        (WHOLE, NUMBER, []),
        (NUMBER, WHOLE, ["TYPE_NARROWED"]),
        (TEXT, WHOLE, ["TYPE_CHANGED"]),
        (TEXT, {"type": ["string", "null"]}, []),
        ({"type": ["string", "null"]}, TEXT, ["TYPE_CHANGED"]),
        (TEXT, True, []),
        ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 4}, ["MAX_LENGTH_DECREASED"]),
        ({**NUMBER, "minimum": 5}, {**NUMBER, "minimum": 4}, []),
        ({**NUMBER, "multipleOf": 10}, {**NUMBER, "multipleOf": 5}, []),
        ({**NUMBER, "multipleOf": 5}, {**NUMBER, "multipleOf": 10}, ["MULTIPLE_OF_CHANGED"]),
        ({"enum": [1, 2]}, {"enum": [1, 2, 3]}, []),
        ({"enum": [1, 2]}, {"enum": [1]}, ["ENUM_ARRAY_NARROWED"]),
        (closed(a=TEXT), closed(a=TEXT, b=TEXT), []),
        (closed(a=TEXT, b=TEXT), closed(a=TEXT), ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
        (opened(a=TEXT), opened(a=TEXT, b=TEXT), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
        (opened(a=TEXT, b=TEXT), opened(a=TEXT), []),
        (opened(), closed(), ["ADDITIONAL_PROPERTIES_REMOVED"]),
        (closed(a=TEXT), {**closed(a=TEXT), "required": ["a"]}, ["REQUIRED_ATTRIBUTE_ADDED"]),
        ({"oneOf": [TEXT]}, {"oneOf": [TEXT, NUMBER]}, []),
        ({"oneOf": [TEXT, NUMBER]}, {"oneOf": [TEXT]}, ["SUM_TYPE_NARROWED"]),
        ({"type": "array", "items": WHOLE}, {"type": "array", "items": NUMBER}, []),
        ({"type": "array"}, {"type": "array", "uniqueItems": True}, ["UNIQUE_ITEMS_ADDED"]),
        (TREE, TREE, []),
        ({**DRAFT3, "dependencies": {"a": "b"}}, {**DRAFT3, "dependencies": {"a": "b"}}, []),
        ({**DRAFT3, "dependencies": {"a": "b"}}, {**DRAFT3, "dependencies": {"a": "c"}}, ["DEPENDENCY_ARRAY_CHANGED"]),
    ],
)
def test_json_schema(before: Any, after: Any, problems: list[str]) -> None:
    assert verdict(SchemaType.JSON, json.dumps(before), json.dumps(after)) == problems


def patterned(pattern: str, schema: Any, rest: Any) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {pattern: schema}, "additionalProperties": rest}


@pytest.mark.parametrize(
    ("pattern", "schema", "rest", "problems"),
    [
        ("(a+)+$", TEXT, False, ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),  # backtracking would take forever
        ("(a+)+", TEXT, False, []),
        # RE2 does not support such expressions, unless both schemas use the same one.
        ("^(?=a)", TEXT, TEXT, []),
        ("^(?=a)", TEXT, NUMBER, ["PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"]),
        ("^(?=a)", NUMBER, TEXT, ["PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"]),
    ],
)
def test_patterns_of_names(pattern: str, schema: Any, rest: Any, problems: list[str]) -> None:
    before = closed(**{"a" * 60 + "!": TEXT})
    after = patterned(pattern, schema, rest)
    assert verdict(SchemaType.JSON, json.dumps(before), json.dumps(after)) == problems


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "problems"),
    [
        ("int32 a = 1;", "int32 a = 1; string b = 2;", []),
        ("int32 a = 1; string b = 2;", "int32 renamed = 1;", []),
        ("int32 a = 1;", "uint64 a = 1;", []),
        ("int32 a = 1;", "sint32 a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("string a = 1;", "bytes a = 1;", []),
        ("map<string, int32> a = 1;", "map<string, string> a = 1;", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("string a = 1; string b = 2;", "oneof o { string a = 1; string b = 2; }", ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"]),
        ("oneof o { string a = 1; string b = 2; }", "oneof o { string a = 1; }", ["ONEOF_FIELD_REMOVED"]),
        ("message N {} N a = 1;", "int32 a = 1;", ["FIELD_KIND_CHANGED", "MESSAGE_REMOVED"]),
    ],
)
def test_protobuf(before: str, after: str, problems: list[str]) -> None:
    old, new = (f'syntax = "proto3"; message M {{ {one} }}' for one in (before, after))
    assert verdict(SchemaType.PROTOBUF, old, new) == problems
