"""The notation of messages at run time. ``typed_messages.py`` tests what mypy must understand."""

from __future__ import annotations

import copy
import pickle

import pytest

from parley.protocol.messages.fetch import FetchResponse
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.schema import Data, Request, Struct, VersionRange, constructor, field, i16, i32


class Sample(Data, versions="0-2", flexible="1+"):
    """A message for these tests."""

    class Part(Struct):
        """A nested struct."""

        number: i32

    parts: list[Part]
    name: str | None = field("1+", nullable="2+", default="x")
    numbers: list[i32] = field(default=[])


@pytest.mark.parametrize(
    ("text", "members", "shown"),
    [
        ("3-5", [3, 4, 5], "3-5"),
        ("4", [4], "4"),
        ("none", [], "none"),
        ("30000+", [30000, 32767], "30000+"),
    ],
)
def test_version_ranges(text: str, members: list[int], shown: str) -> None:
    found = VersionRange(text)
    assert all(version in found for version in members)
    assert -1 not in found
    assert 2 not in found
    assert repr(found) == shown
    assert found == VersionRange(text)
    assert hash(found) == hash(VersionRange(text))


def test_required_fields_must_be_passed() -> None:
    with pytest.raises(TypeError, match="parts"):
        Sample()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="other"):
        Sample(parts=[], other=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Sample(parts=[]).other = 1  # type: ignore[attr-defined]


def test_default_lists_are_not_shared() -> None:
    one, other = Sample(parts=[]), Sample(parts=[])
    one.numbers.append(1)
    assert other.numbers == []


def test_a_constructor_does_the_same_as_the_class() -> None:
    new_sample = constructor(Sample)
    made = new_sample(parts=[], name=None)
    assert type(made) is Sample
    assert made == Sample(parts=[], name=None)
    assert new_sample(parts=[], unknown_tags=((1, b"x"),)) == Sample(parts=[], unknown_tags=((1, b"x"),))
    made.numbers.append(1)
    assert new_sample(parts=[]).numbers == []
    with pytest.raises(TypeError, match="parts"):
        new_sample()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="other"):
        new_sample(parts=[], other=1)  # type: ignore[call-arg]


def test_equality_and_looks() -> None:
    one = Sample(parts=[Sample.Part(number=1)])
    assert one == Sample(parts=[Sample.Part(number=1)], name="x")
    assert one != Sample(parts=[Sample.Part(number=2)])
    assert one != Sample(parts=[Sample.Part(number=1)], unknown_tags=((1, b""),))
    assert one != "Sample"
    assert repr(one) == "Sample(parts=[Sample.Part(number=1)], name='x', numbers=[])"
    assert "unknown_tags=((1, b''),)" in repr(Sample(parts=[], unknown_tags=((1, b""),)))
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_copies() -> None:
    one = FetchResponse.PartitionData(
        partition_index=0, high_watermark=1, aborted_transactions=[], records=memoryview(b"abc").toreadonly()
    )
    assert one.copy() == one
    assert copy.copy(one) == one
    deep = Sample(parts=[Sample.Part(number=1)])
    shallow_free = deep.copy()
    shallow_free.parts[0].number = 2
    assert deep.parts[0].number == 1
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
    assert pickle.loads(pickle.dumps(request)) == request


def test_a_blank_has_every_default() -> None:
    assert Sample.blank() == Sample(parts=[], name="x", numbers=[])


def test_contradictions_are_noticed() -> None:
    with pytest.raises(TypeError, match="needs both tag= and tagged="):
        field("1+", tag=3)
    with pytest.raises(TypeError, match="flexible="):
        field("1+", flexible="2+")

    class NotNullable(Data, versions="0"):
        text: str = field(nullable="0+")

    with pytest.raises(TypeError, match="text is nullable, but its annotation does not include None"):
        NotNullable.fields()

    class NoType(Data, versions="0"):
        anything: dict[str, str]

    with pytest.raises(TypeError, match="no wire type"):
        NoType.fields()

    class TwoTypes(Data, versions="0"):
        either: str | bytes

    with pytest.raises(TypeError, match="one type"):
        TwoTypes.fields()


def test_api_keys_and_versions() -> None:
    class Ask(Request, key=500, versions="2-4", flexible="4+"):
        answer: i16 = 42

    assert Ask.API_KEY == 500
    assert [version for version in range(9) if version in Ask.VERSIONS] == [2, 3, 4] == list(Ask.VERSIONS)
    assert [Ask.is_flexible(version) for version in Ask.VERSIONS] == [False, False, True]
