"""Compare the definitions with those of Apache Kafka, and the reader of properties files with Java's."""

from __future__ import annotations

import base64
import random
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from parley.broker.config import BrokerConfig, TopicConfig, parse_properties
from parley.broker.config.key_definition import Dynamic, Key
from parley.broker.config.retired import why_retired
from tests.broker.config import kafka_0_9
from tests.support.kafka import KAFKA_3, KAFKA_4
from tests.support.kafka_answers import computed_by_kafka

pytestmark = pytest.mark.system

PROGRAM = Path(__file__).with_name("KafkaConfigs.java")

OTHER_DEFAULTS = {
    "node.id": "Kafka requires it; here the cluster can give out an id",
    "process.roles": "Kafka requires it; here it has no effect",
    "controller.listener.names": "Kafka requires it; here it only names listeners to leave out",
    "metric.reporters": "a Java class",
    "socket.listen.backlog.size": "50 delays clients by a second when many connect at the same time",
    "socket.receive.buffer.bytes": "the system's own choice costs less CPU time",
    "socket.send.buffer.bytes": "the system's own choice costs less CPU time",
    "principal.builder.class": "a Java class",
}
"""Keys with a default that differs from Kafka's, and the reasons."""

OTHER_RANGES = {
    "node.id": "-1 lets the cluster give out an id",
}
"""Keys whose range differs from Kafka's, and the reasons."""

DYNAMIC_HERE = {
    "log.cut.retention.bytes": "Parley's own",
    "log.message.downconversion.enable": "dynamic in Kafka until 3.9, gone in 4.0",
    "log.message.timestamp.difference.max.ms": "dynamic in Kafka until 3.9, gone in 4.0",
    "log.scrub.interval.ms": "Parley's own",
    "log.scrub.max.bytes.per.second": "Parley's own",
    "metrics.group.partitions.max": "Parley's own",
    "ssl.crl.location": "Parley's own",
    "transactional.ids.max.per.partition": "Parley's own",
    "unclean.recovery.strategy": "planned for Kafka by KIP-966",
}
"""Keys that can be changed at run time in Parley, although Kafka 4 does not list them as dynamic."""


class Theirs(NamedTuple):
    """A definition of Kafka."""

    type: str
    default: str
    allowed: str
    internal: bool


@cache
def definitions(version: str) -> dict[str, dict[str, Theirs]]:
    """Return the keys of brokers and those of topics in a release of Kafka."""
    found: dict[str, dict[str, Theirs]] = {"broker": {}, "topic": {}}
    for line in computed_by_kafka(PROGRAM, "definitions", version=version).splitlines():
        kind, name, type_, default, allowed, internal = line.split("\t")
        found[kind][name] = Theirs(type_, default, allowed, internal == "true")
    return found


@cache
def newest(kind: str) -> dict[str, Theirs]:
    """Return every key of 3.9 or 4.3, as the newer release defines it."""
    return {**definitions(KAFKA_3)[kind], **definitions(KAFKA_4)[kind]}


OURS: dict[str, dict[str, Key[Any]]] = {"broker": dict(BrokerConfig.KEYS), "topic": dict(TopicConfig.KEYS)}
KINDS = pytest.mark.parametrize("kind", OURS)


@pytest.mark.parametrize(
    ("kind", "names"), [("broker", kafka_0_9.BROKER_KEYS), ("topic", kafka_0_9.TOPIC_KEYS)], ids=["broker", "topic"]
)
def test_every_key_of_0_9_is_defined(kind: str, names: frozenset[str]) -> None:
    assert names - OURS[kind].keys() == set()


@KINDS
def test_every_key_is_defined_or_known_to_be_of_no_use(kind: str) -> None:
    missing = {
        name
        for name, theirs in newest(kind).items()
        if name not in OURS[kind] and not theirs.internal and (kind == "topic" or why_retired(name) is None)
    }
    assert missing == set()


@KINDS
def test_types_are_kafkas(kind: str) -> None:
    theirs = newest(kind)
    assert {n: k.type.name for n, k in OURS[kind].items() if n in theirs and k.type.name != theirs[n].type} == {}


@KINDS
def test_defaults_are_kafkas(kind: str) -> None:
    theirs = newest(kind)
    differing = {
        name: (ours, theirs[name].default)
        for name, key in OURS[kind].items()
        if name in theirs and (ours := _default(key)) != theirs[name].default
    }
    assert {name: both for name, both in differing.items() if name not in OTHER_DEFAULTS} == {}
    assert kind == "topic" or set(OTHER_DEFAULTS) <= set(differing), "exceptions that are none"


def _default(key: Key[Any]) -> str:
    text = key.text(key.default)
    return "<null>" if text is None else text


@KINDS
def test_ranges_are_those_of_kafka(kind: str) -> None:
    wrong = {}
    for name, theirs in newest(kind).items():
        match = re.fullmatch(r"\[(-?[\d.]+),\.\.\.(?:,(-?[\d.]+))?\](?: or (-?\d+))?", theirs.allowed)
        if match and name in OURS[kind] and name not in OTHER_RANGES:
            key = OURS[kind][name]
            expected = (float(match[1]), match[2] and float(match[2]), match[3] and (int(match[3]),))
            ours = (key.at_least, key.at_most, key.special_values or None)
            if ours != expected:
                wrong[name] = (ours, expected)
    assert wrong == {}


@KINDS
def test_choices_are_kafkas(kind: str) -> None:
    wrong = {}
    for name, theirs in newest(kind).items():
        key = OURS[kind].get(name)
        if key is not None and key.allowed:
            expected = theirs.allowed.strip("[]").split(", ")
            if set(key.allowed) != set(expected):
                wrong[name] = (key.allowed, expected)
    assert wrong == {}


def test_the_same_keys_as_in_kafka_can_be_changed_at_run_time() -> None:
    theirs = dict(line.split("\t") for line in computed_by_kafka(PROGRAM, "dynamic").splitlines())
    ours = {name: key.dynamic.value for name, key in BrokerConfig.KEYS.items() if key.dynamic is not Dynamic.READ_ONLY}
    assert {n: mode for n, mode in theirs.items() if n in BrokerConfig.KEYS and ours.get(n) != mode} == {}
    assert ours.keys() - theirs.keys() == DYNAMIC_HERE.keys()


def test_topics_take_their_defaults_from_the_same_keys() -> None:
    theirs = dict(line.split("\t") for line in computed_by_kafka(PROGRAM, "synonyms").splitlines())
    ours = {name: key.server for name, key in TopicConfig.KEYS.items() if key.server}
    assert {name: key for name, key in ours.items() if name in theirs and key != theirs[name]} == {}
    assert theirs.keys() <= ours.keys()


def test_properties_files_are_read_as_java_reads_them() -> None:
    rng = random.Random(1)
    # Of a lone backslash at the very end Java makes an empty entry; we do not. So something else stands there.
    texts = ["".join(rng.choices("ab= :\\\n\r\t\f#!u0041,é", k=rng.randrange(40))) + "\n\nz" for _ in range(5000)]
    lines = "\n".join(base64.b64encode(text.encode("utf-16-be")).decode() for text in texts)
    answers = computed_by_kafka(PROGRAM, "properties", stdin=lines).split("\n")
    for text, answer in zip(texts, answers[: len(texts)], strict=True):
        assert _entries(text) == _answer(answer), repr(text)


def _entries(text: str) -> dict[str, str] | None:
    try:
        return parse_properties(text)
    except ValueError:
        return None


def _answer(line: str) -> dict[str, str] | None:
    if line == "!":
        return None
    pairs = (pair.split(":") for pair in line.split(",") if pair)
    return {_decoded(name): _decoded(value) for name, value in pairs}


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode("utf-16-be")
