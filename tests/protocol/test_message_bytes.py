"""Our encoding compared with that of Apache Kafka's own classes: every message and version, with random content."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parley.protocol.codec import decode, encode
from parley.protocol.schema import Data, FieldType, Header, Message, Struct
from parley.protocol.uuids import UUID
from tests.protocol.kafka_definitions import Reference, is_own
from tests.protocol.test_messages import KAFKAS, is_stored_key
from tests.support.kafka_answers import computed_by_kafka

pytestmark = pytest.mark.system

SAMPLES = 6
ENCODER = Path(__file__).with_name("KafkaEncoder.java")
PACKAGES = {
    "kafka-clients": "org.apache.kafka.common.message",
    "kafka-group-coordinator": "org.apache.kafka.coordinator.group.generated",
    "kafka-share-coordinator": "org.apache.kafka.coordinator.share.generated",
    "kafka-transaction-coordinator": "org.apache.kafka.coordinator.transaction.generated",
}
INTEGERS = {
    "i8": (-(2**7), 2**7 - 1),
    "i16": (-(2**15), 2**15 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u16": (0, 2**16 - 1),
}
LETTERS = "abcXYZ019 -_.\u00e9\u4e2d\U0001f600"


class Sampler:
    """Creates the same random message twice: as our object, and as the JSON that Kafka reads."""

    def __init__(self, seed: str, version: int) -> None:
        self.random = random.Random(seed)
        self.version = version

    def struct(self, cls: type[Struct]) -> tuple[Struct, dict[str, Any]]:
        ours: dict[str, Any] = {}
        theirs: dict[str, Any] = {}
        for field in cls.fields():
            if self.version not in field.versions or is_own(field):
                continue
            if self.version in field.tagged and self.random.random() < 0.3:
                if field.required:
                    ours[field.name] = field.default()
                continue  # a field with its default must not be on the wire
            if self.version in field.nullable and self.random.random() < 0.3:
                value = shown = None
            else:
                value, shown = self.value(field.type)
            ours[field.name] = value
            theirs[camel_case(field.name)] = shown
        return cls(**ours), theirs

    def value(self, kind: FieldType) -> tuple[Any, Any]:
        if kind.struct is not None:
            return self.struct(kind.struct)
        if kind.element is not None:
            pairs = [self.value(kind.element) for _ in range(self.random.choice((0, 1, 2, 2)))]
            return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
        return self.scalar(kind.kind)

    def scalar(self, kind: str) -> tuple[Any, Any]:
        if kind in INTEGERS:
            low, high = INTEGERS[kind]
            number = self.random.choice((low, high, 0, self.random.randint(low, high)))
            return number, number
        match kind:
            case "bool":
                flag = self.random.random() < 0.5
                return flag, flag
            case "f64":
                real = self.random.uniform(-1e9, 1e9)
                return real, real
            case "uuid":
                raw = self.random.randbytes(16)
                return UUID(bytes=raw), base64.urlsafe_b64encode(raw).decode().rstrip("=")
            case "str":
                text = "".join(self.random.choices(LETTERS, k=self.random.choice((0, 1, 9, 130))))
                return text, text
            case "bytes" | "records":
                raw = self.random.randbytes(self.random.choice((0, 1, 9, 130)))
                return raw, base64.b64encode(raw).decode()
        raise AssertionError(f"no sample for {kind}")


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


Sample = tuple[int, Message, bytes]


def samples(message: type[Message]) -> Iterator[tuple[int, Message, str]]:
    for version in message.VERSIONS:
        for number in range(SAMPLES):
            ours, theirs = Sampler(f"{message.__name__} {version} {number}", version).struct(message)
            assert isinstance(ours, message)
            yield version, ours, json.dumps(theirs)


def encoded_by_kafka(release: str, lines: list[str]) -> list[str]:
    """Return the output of the encoder in a release of Kafka, in the order of the lines."""
    answers = computed_by_kafka(ENCODER, version=release, stdin="\n".join(lines) + "\n", timeout_s=800).splitlines()
    assert len(answers) == len(lines)
    return answers


def class_name(message: type[Message], jar: Path) -> str:
    """Return the name of Kafka's class; those of requests, responses and headers end in Data."""
    package = next(package for prefix, package in PACKAGES.items() if jar.name.rpartition("-")[0] == prefix)
    suffix = "" if issubclass(message, Data) and not issubclass(message, Header) else "Data"
    return f"{package}.{message.__name__}{suffix}"


def kafka_bytes(kafka_messages: Mapping[str, Reference]) -> Mapping[str, list[Sample]]:
    """Return random messages with Kafka's bytes for them, by the name of the message."""
    asked: dict[str, list[tuple[str, int, Message, str]]] = {}
    for name, message in KAFKAS.items():
        for version, ours, theirs in samples(message):
            # newer definitions of stored keys have only one version
            reference = kafka_messages[name]
            definition = reference.definitions[-1] if is_stored_key(name) else reference.at(version)
            line = f"{class_name(message, definition.jar)}\t{version}\t{theirs}"
            release = definition.jar.parents[1].name.removeprefix("kafka-")
            asked.setdefault(release, []).append((name, version, ours, line))
    found: dict[str, list[Sample]] = {name: [] for name in KAFKAS}
    for release, questions in asked.items():
        answers = encoded_by_kafka(release, [line for *_, line in questions])
        for (name, version, ours, line), answer in zip(questions, answers, strict=True):
            assert not answer.startswith("!"), f"{line}: {answer}"
            found[name].append((version, ours, bytes.fromhex(answer)))
    return found


@pytest.mark.timeout(900)
def test_same_bytes_as_kafka(kafka_messages: Mapping[str, Reference]) -> None:
    for name, compared in kafka_bytes(kafka_messages).items():
        assert compared, name
        for version, ours, theirs in compared:
            assert bytes(encode(ours, version)) == theirs, f"version {version} of {ours}"
            assert decode(KAFKAS[name], version, theirs) == ours, f"version {version} of {ours}"
