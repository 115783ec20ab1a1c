"""Our encoding compared with that of kio, which is generated from Kafka's definitions: random messages, in both
directions.

kio gives some fields narrower types than the wire format (durations, times, error codes). Values are drawn from the
range of both.
"""

from __future__ import annotations

import datetime
import io
import math
import random
from dataclasses import fields
from typing import Any, get_args

import pytest
from kio.index import load_entity_module
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from parley.protocol.codec import decode, encode
from parley.protocol.errors import ErrorCode
from parley.protocol.messages import APIS
from parley.protocol.schema import ZERO_UUID, Field, FieldType, Message, Struct
from parley.protocol.uuids import UUID
from tests.protocol.kafka_definitions import is_own, snake_case
from tests.protocol.test_messages import MESSAGES

pytestmark = pytest.mark.slow

SAMPLES = 6
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
INTEGER_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "u16": 16, "u32": 32}
SPAN_MS_MAX = 10**12  # well within the exact range of datetime.timedelta
MOMENT_MS_MAX = 4 * 10**12

KINDS: dict[str, Any] = {
    "Request": EntityType.request,
    "Response": EntityType.response,
    "Header": EntityType.header,
}


def kio_entity(message: type[Message]) -> tuple[str, Any]:
    """kio's name and kind of a message."""
    suffix = next((end for end in ("Request", "Response") if message.__name__.endswith(end)), "")
    kind: Any = EntityType.header if message.__name__.endswith("Header") else KINDS.get(suffix, EntityType.data)
    name = message.__name__
    return snake_case(name if kind in (EntityType.header, EntityType.data) else name[: -len(suffix)]), kind


def is_known_to_kio(message: type[Message], version: int) -> bool:
    name, kind = kio_entity(message)
    return kind in schema_name_map.get(name, {}).get(version, {})


def kio_class(message: type[Message], version: int) -> Any:
    """Return kio's class for a version of a message. Its first import takes a while."""
    name, kind = kio_entity(message)
    return getattr(load_entity_module(name, version, kind), message.__name__)


BOTH = {
    message: versions
    for _, message in sorted(MESSAGES.items())
    if (versions := [version for version in message.VERSIONS if is_known_to_kio(message, version)])
}
"""The versions of each message that kio supports, too."""


class Pairs:
    """Creates the same random message twice: as our object and as kio's."""

    def __init__(self, rng: random.Random, version: int) -> None:
        self.rng = rng
        self.version = version

    def struct(self, ours: type[Struct], theirs: Any) -> tuple[Any, Any]:
        our_fields = [field for field in ours.fields() if self.version in field.versions and not is_own(field)]
        their_fields = fields(theirs)
        assert len(our_fields) == len(their_fields), (ours, theirs)
        our_values, their_values = {}, {}
        for our_field, their_field in zip(our_fields, their_fields, strict=True):
            assert our_field.name.startswith(their_field.name.rstrip("_")), (our_field.name, their_field.name)
            assert their_field.metadata.get("tag") == (our_field.tag if self.version in our_field.tagged else None)
            our_value, their_value = self.field(our_field, their_field)
            our_values[our_field.name], their_values[their_field.name] = our_value, their_value
        return ours(**our_values), theirs(**their_values)

    def field(self, ours: Field, theirs: Any) -> tuple[Any, Any]:
        kafka_type = theirs.metadata.get("kafka_type")
        optional = type(None) in get_args(theirs.type)
        if self.version in ours.nullable and self.rng.random() < 0.3:
            assert optional, f"{ours.name} is not nullable in kio"
            if self.version not in ours.tagged or ours.default() is None:
                return None, None
        return self.value(ours.type, theirs.type, kafka_type, optional)

    def value(self, kind: FieldType, annotation: Any, kafka_type: str | None, optional: bool) -> tuple[Any, Any]:
        if kind.element is not None:
            array = next((one for one in get_args(annotation) if getattr(one, "__origin__", None) is tuple), annotation)
            element = get_args(array)[0]
            count = self.rng.choice((0, 1, 2, 3))
            pairs = [self.value(kind.element, element, kafka_type, False) for _ in range(count)]
            return [ours for ours, _ in pairs], tuple(theirs for _, theirs in pairs)
        if kind.struct is not None:
            plain = next((one for one in get_args(annotation) if one is not type(None)), annotation)
            return self.struct(kind.struct, plain)
        return self.scalar(kind.kind, kafka_type, optional)

    def scalar(self, kind: str, kafka_type: str | None, optional: bool) -> tuple[Any, Any]:
        rng = self.rng
        match kafka_type:
            case "error_code":
                code = rng.choice([one for one in KioErrorCode if ErrorCode(one.value).value == int(one.value)])
                return code.value, code
            case "timedelta_i32":
                span = rng.choice((-1, 0, 2**31 - 1, rng.randrange(2**31)))
                return span, datetime.timedelta(milliseconds=span)
            case "timedelta_i64":
                span = rng.choice((-1, 0, rng.randrange(SPAN_MS_MAX)))
                return span, datetime.timedelta(milliseconds=span)
            case "datetime_i64":
                if optional and rng.random() < 0.3:
                    return -1, None
                moment = rng.randrange(MOMENT_MS_MAX)
                return moment, EPOCH + datetime.timedelta(milliseconds=moment)
        if kind in INTEGER_BITS:
            low = 0 if kind.startswith("u") else -(2 ** (INTEGER_BITS[kind] - 1))
            number = rng.choice(
                (low, low + 2 ** INTEGER_BITS[kind] - 1, 0, 1, rng.randrange(2 ** (INTEGER_BITS[kind] - 1)))
            )
            return number, number
        match kind:
            case "bool":
                flag = rng.random() < 0.5
                return flag, flag
            case "f64":
                real = rng.choice((0.0, -math.pi, rng.uniform(-1e300, 1e300)))
                return real, real
            case "uuid":
                found = rng.choice((ZERO_UUID, UUID(bytes=rng.randbytes(16))))
                return found, None if found == ZERO_UUID else found
            case "str":
                text = "".join(rng.choices("abc \u00e9\u4e2d\U0001f600", k=rng.choice((0, 1, 9, 60, 200))))
                return text, text
            case "bytes" | "records":
                raw = rng.randbytes(rng.choice((0, 1, 9, 130, 3000)))
                return raw, raw
        raise AssertionError(f"no sample for {kind}")


@pytest.mark.parametrize("message", BOTH, ids=lambda message: message.__name__)
def test_same_bytes_as_kio(message: type[Message]) -> None:
    for version in BOTH[message]:
        same_bytes(message, version)


def same_bytes(message: type[Message], version: int) -> None:
    kio = kio_class(message, version)
    write, read = entity_writer(kio), entity_reader(kio)
    for number in range(SAMPLES):
        rng = random.Random(f"{message.__name__} {version} {number}")
        ours, theirs = Pairs(rng, version).struct(message, kio)
        buffer = io.BytesIO()
        write(buffer, theirs)
        assert encode(ours, version) == buffer.getvalue()
        assert decode(message, version, buffer.getvalue()) == ours
        found, size = read(encode(ours, version), 0)
        assert (found, size) == (theirs, len(buffer.getvalue()))


def test_everything_both_know_is_compared() -> None:
    compared = {(message.__name__, version) for message, versions in BOTH.items() for version in versions}
    for key, api in APIS.items():
        versions = schema_name_map.get(snake_case(api.name), {})
        for version in set(versions) & set(api.request.VERSIONS):
            assert (f"{api.name}Request", version) in compared, key
            assert (f"{api.name}Response", version) in compared, key
    assert len(compared) > 500
