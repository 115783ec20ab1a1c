"""Hypothesis strategies for messages, derived from their schema."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from parley.protocol.schema import ZERO_UUID, Field, FieldType, Message, Struct
from parley.protocol.uuids import UUID

INTEGER_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "u16": 16, "u32": 32}


def integers(kind: str) -> st.SearchStrategy[int]:
    bits = INTEGER_BITS[kind]
    if kind.startswith("u"):
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def sized_bytes() -> st.SearchStrategy[bytes]:
    """Generate mostly short values, and values around the lengths at which a varint needs a second byte."""
    return st.one_of(st.binary(max_size=12), st.sampled_from([b"x" * 126, b"x" * 127, b"y" * 128, b"z" * 2000]))


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{kind: integers(kind) for kind in INTEGER_BITS},
    "bool": st.booleans(),
    "f64": st.floats(allow_nan=False),
    "str": st.one_of(st.text(max_size=8), st.sampled_from(["", "x" * 126, "x" * 127, "\u00e9" * 64, "y" * 32767])),
    "uuid": st.one_of(st.just(ZERO_UUID), st.binary(min_size=16, max_size=16).map(lambda raw: UUID(bytes=raw))),
    "bytes": sized_bytes(),
    "records": sized_bytes(),
}


UNKNOWN_TAGS = st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=4), max_size=2)


@st.composite
def structs(draw: st.DrawFn, cls: type[Struct], version: int, flexible: bool) -> Any:
    """Generate an instance of a struct that can be sent in this version. Fields that the version lacks have their
    default."""
    values = {
        field.name: draw(values_of(field, version, flexible)) if version in field.versions else field.default()
        for field in cls.fields()
    }
    if flexible:
        known = {field.tag for field in cls.fields() if version in field.tagged}
        tags = draw(UNKNOWN_TAGS)
        values["unknown_tags"] = tuple(sorted((tag, value) for tag, value in tags.items() if tag not in known))
    return cls(**values)


@functools.cache
def values_of(field: Field, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    strategy = values_of_type(field.type, version, flexible)
    if version in field.nullable:
        strategy = st.one_of(st.none(), strategy)
    if version in field.tagged:
        strategy = st.one_of(st.builds(field.default), strategy)
    return strategy


def values_of_type(kind: FieldType, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    if kind.struct is not None:
        return structs(kind.struct, version, flexible)
    if kind.element is not None:
        return st.lists(values_of_type(kind.element, version, flexible), max_size=3)
    return SCALARS[kind.kind]


def messages(cls: type[Message], version: int) -> st.SearchStrategy[Any]:
    """Generate instances of a message that can be sent in this version."""
    return structs(cls, version, cls.is_flexible(version))
