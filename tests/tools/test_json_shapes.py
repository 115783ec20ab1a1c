"""The output of ``--json`` has the documented shape."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from parley import Broker
from parley.consensus.registry import create_backend
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.tools.cli import profiles
from parley.tools.cli.json_shapes import SHAPES, differences
from tests.tools.conftest import Parley

LOCAL = (
    "dump-log",
    "log-repair",
    "coordination check",
    "coordination status",
    "profile list",
    "profile show",
    "version",
)
ELSEWHERE = (
    "mirror",
    "transactions list",
    "transactions describe",
    "transactions describe-producers",
    "transactions find-hanging",
    "acls --list",
    "balance --holds",
    "delegation-tokens --describe",
    "doctor",
)
"""Commands whose output is checked by their own tests."""
BY_LINE = ("consume", "dump-log", "tail")
WORDS = {
    "topics --list": (),
    "topics --describe": ("--topic", "{topic}"),
    "consume": ("--topic", "{topic}", "--from-beginning", "--max-messages", "2"),
    "tail": ("{topic}", "--no-follow"),
    "top": ("--interval", "0.1"),
    "groups --list": (),
    "groups --describe": ("--group", "of-{topic}", "--group", "nobody"),
    "groups --reset-offsets": ("--group", "of-{topic}", "--topic", "{topic}", "--to-earliest", "--dry-run"),
    "groups --delete-offsets": ("--group", "of-{topic}", "--topic", "{topic}:0"),
    "groups --delete": ("--group", "of-{topic}", "--group", "nobody"),
    "configs --describe": ("--entity-type", "brokers", "--all"),
    "offsets": ("--topic", "{topic}"),
    "delete-records": ("--offset-json-file", "{plan}"),
    "elect-leaders": ("--election-type", "preferred", "--topic", "{topic}", "--partition", "0"),
    "reassign --list": (),
    "reassign --generate": ("--topics-to-move-json-file", "{topics}", "--broker-list", "{broker}"),
    "reassign --verify": ("--reassignment-json-file", "{moves}", "--preserve-throttles"),
    "balance --plan": ("--interval", "0"),
    "cluster list-endpoints": (),
    "features describe": (),
    "log-dirs --describe": ("--topic-list", "{topic}"),
    "log-dirs --space": (),
    "log-dirs --verify": ("--topic-list", "{topic}"),
    "metadata": ("--topic", "{topic}"),
    "check": ("--seconds", "0.5"),
    "dump-log": ("--files", "{log}", "--print-data-log"),
    "log-repair": ("--log-dirs", "{cut}"),
    "perf produce": ("--topic", "{topic}", "--num-records", "20", "--record-size", "1", "--throughput", "-1",
                     "--warmup-records", "5"),
    "perf consume": ("--topic", "{topic}", "--num-records", "2"),
    "perf latency": ("--topic", "{topic}", "--num-records", "2", "--producer-acks", "1", "--record-size", "1"),
    "coordination check": ("{store}",),
    "security check": (),
    "coordination status": ("{store}",),
    "coordination migrate": ("--status",),
    "profile list": (),
    "profile show": ("a",),
    "version": (),
}  # fmt: skip


@pytest.fixture
def names(broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    profiles.store("a", {"bootstrap.servers": "127.0.0.1:9092"}, replace=False)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for key in (None, b"k"):
        producer.produce(topic, b"v", key, partition=0, headers=[("h", b"x"), ("h", None)])
    producer.flush()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"of-{topic}"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    log, plan = tmp_path / "00000000000000000000.log", tmp_path / "plan.json"
    log.write_bytes(bytes(build([Record(0, 1, None, b"v", ())])))
    cut = tmp_path / "disk"
    (cut / "t-0").mkdir(parents=True)
    (cut / "t-0" / "00000000000000000007-1.cut").write_bytes(bytes(build([Record(0, 1, None, b"v", ())])))
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 0}]}))
    topics, moves, number = tmp_path / "topics.json", tmp_path / "moves.json", broker.server.identity.broker_id
    topics.write_text(json.dumps({"topics": [{"topic": topic}], "version": 1}))
    place = {
        "topic": topic,
        "partition": 0,
        "replicas": [number],
        "log_dirs": [broker.server.parts.logs.directories[0].path.as_posix()],
    }
    moves.write_text(json.dumps({"partitions": [place], "version": 1}))
    store = f"local://{tmp_path}/store"
    asyncio.run(_begin(store))
    return {
        "topic": topic,
        "log": log,
        "cut": cut,
        "plan": plan,
        "topics": topics,
        "moves": moves,
        "broker": number,
        "store": store,
    }


async def _begin(store: str) -> None:
    async with create_backend(store):
        pass


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in ELSEWHERE])
def test_output_has_the_documented_shape(parley: Parley, broker: Broker, names: dict[str, Any], name: str) -> None:
    words = [word.format(**names) for word in WORDS[name]]
    at = [] if name in LOCAL else ["--bootstrap-server", broker.bootstrap_servers]
    typed = parley(*name.split(), *at, *words, "--json")
    values = [json.loads(line) for line in typed.lines] if name in BY_LINE else [json.loads(typed.out)]
    assert values
    for value in values:
        assert differences(value, SHAPES[name][1]) == []
        assert value or name == "reassign --list"  # nothing is moved on a single broker


def test_differences() -> None:
    shape = {"a": "integer|null", "b?": ["string"], "<name>": "boolean"}
    assert differences({"a": 1, "b": ["x"], "c": True}, shape) == []
    assert differences({"a": None}, shape) == []
    assert differences({"a": True}, shape) == ["$.a: True is not integer|null"]
    assert differences({"b": "x", "c": 1}, shape) == ["$.a is missing", "$.b is not a list", "$.c: 1 is not boolean"]
    assert differences({"a": 1}, {"b?": "any"}) == ["$.a is not in the shape"]
    assert differences([], shape) == ["$ is not an object"]
