"""The registry's state, a new writer's repair after aborted records, and the search for a schema. No I/O."""

from __future__ import annotations

import pytest

from parley.pipeline.registry.aborted_records import records_again
from parley.pipeline.registry.decisions import COMPILED_MAX, delete_subject, find
from parley.pipeline.registry.state import Record, State, Version, config_key, deletion_key, version_key
from parley.pipeline.schemas import protobuf
from parley.pipeline.schemas.model import Loader, Schema, SchemaType
from parley.pipeline.values.json_text import packed

INT, LONG = Schema(SchemaType.AVRO, '"int"'), Schema(SchemaType.AVRO, '"long"')


class Topic:
    """The registry's topic, with the records of aborted transactions."""

    def __init__(self) -> None:
        self.committed = State()
        self.values: dict[bytes, bytes | None] = {}
        self.uncommitted = State()
        """The state of a reader that does not skip aborted transactions."""

    def write(self, *records: Record) -> None:
        for key, value in records:
            self.committed.apply(key, value)
            self.uncommitted.apply(key, value)
            self.values[key] = value

    def register(self, version: int, schema: Schema = INT) -> None:
        self.write(Version("a", version, version, schema).record())

    def abort(self, *records: Record) -> None:
        for key, value in records:
            self.uncommitted.apply(key, value)

    def compacted(self) -> State:
        state = State()
        for key, value in self.values.items():
            state.apply(key, value)
        return state

    def write_again(self, *keys: bytes) -> None:
        for key, value in records_again(set(keys), self.values, self.committed):
            self.values.pop(key, None)  # compaction keeps the last record, at its offset
            self.write((key, value))

    def found(self) -> list[list[tuple[int, bool]]]:
        states = (self.committed, self.uncommitted, self.compacted())
        return [[(one.version, one.is_deleted) for one in state.versions("a", deleted=True)] for state in states]


def test_a_killed_permanent_deletion_leaves_versions_softly_deleted() -> None:
    topic = Topic()
    topic.register(1)
    topic.write(*delete_subject(topic.committed, "a", permanent=False).records)
    topic.abort(*delete_subject(topic.committed, "a", permanent=True).records)
    topic.write_again(version_key("a", 1))
    assert topic.found() == [[(1, True)]] * 3


def test_a_killed_soft_deletion_leaves_versions_alive_that_came_after_an_earlier_one() -> None:
    topic = Topic()
    topic.register(1)
    topic.write(*delete_subject(topic.committed, "a", permanent=False).records)
    topic.write(*delete_subject(topic.committed, "a", permanent=True).records)
    topic.register(1)
    topic.abort(*delete_subject(topic.committed, "a", permanent=False).records)
    topic.write_again(deletion_key("a"))
    assert topic.found() == [[(1, False)]] * 3
    assert topic.values[deletion_key("a")] is not None, "Confluent's registry cannot read a tombstone of it"


def test_a_killed_soft_deletion_does_not_undo_an_earlier_one() -> None:
    topic = Topic()
    topic.register(1)
    topic.write(*delete_subject(topic.committed, "a", permanent=False).records)
    topic.register(2, LONG)
    topic.abort(*delete_subject(topic.committed, "a", permanent=False).records)
    topic.write_again(deletion_key("a"))
    assert topic.found() == [[(1, True), (2, False)]] * 3


def test_other_aborted_records_get_their_last_value_byte_by_byte() -> None:
    state, unreadable = State(), version_key("b", 1)
    values: dict[bytes, bytes | None] = {config_key("a"): b'{ "compatibilityLevel": "NONE" }', unreadable: b"?"}
    aborted = [*values, version_key("c", 1), b"no JSON"]
    assert dict(records_again(aborted, values, state)) == {**dict.fromkeys(aborted), **values}


@pytest.mark.parametrize("value", [b"?", b"[]", packed({"id": 2, "schemaType": "XML", "schema": "<a/>"})])
def test_an_unreadable_record_of_a_version_changes_nothing(value: bytes) -> None:
    state = State()
    state.apply(*Version("a", 1, 1, INT).record())
    state.apply(version_key("a", 1), value)
    state.apply(version_key("b", 1), value)
    state.apply(b'{"keytype":"SCHEMA","subject":7,"version":1,"magic":1}', packed({"id": 3, "schema": '"int"'}))
    assert (state.subjects(), [one.schema for one in state.versions("a")]) == (["a"], [INT])


def test_a_search_compiles_few_of_the_stored_protobuf_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def canonical(schema: Schema, load: Loader) -> str:
        compiled.append(schema.text)
        return schema.text.replace("/* other */", "")

    monkeypatch.setattr(protobuf, "canonical", canonical)

    def message(name: str, number: int) -> Schema:
        return Schema(SchemaType.PROTOBUF, f'syntax = "proto3"; /* other */message {name} {{ int32 a = {number}; }}')

    state = State()
    for version in range(1, 201):
        state.apply(*Version("a", version, version, message(f"Other{version}", 1)).record())
    wanted = message("M", 5)
    wanted = wanted.with_text(wanted.text.replace("/* other */", ""))
    assert (find(state, "a", wanted), compiled) == (None, [])
    for version in range(201, 300):
        state.apply(*Version("a", version, version, message("M", version)).record())
    assert (find(state, "a", wanted), len(compiled)) == (None, COMPILED_MAX)
    state.apply(*Version("a", 300, 300, message("M", 5)).record())
    found = find(state, "a", wanted)
    assert found is not None
    assert found.version == 300


def test_names_are_compared_without_comments_strings_and_scopes() -> None:
    text = 'package p; message M { /* Old */ M.N n = 1; // Old\n message N {} string s = 2 [json_name = "s\\"t"]; }'
    printed = 'syntax = "proto3"; package p; message M { .p.M.N n = 1; string s = 2 [json_name="x"]; message N {} }'
    assert protobuf.may_be_same(text, printed)
    assert not protobuf.may_be_same(text, printed.replace("n = 1", "m = 1"))
    assert protobuf.may_be_same(text, "CgFh"), "a descriptor has to be compared itself"
    assert not protobuf.may_be_same(text, "message X {}" + '"/*' * 100_000 + "\n'\\'" * 100_000)
