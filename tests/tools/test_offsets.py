"""``parley offsets`` finds offsets by position and time. ``parley delete-records`` deletes records before offsets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parley.tools.cli.delete_records import parse_plan
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.offsets import parse_patterns, parse_time
from tests.tools.conftest import Parley, Send


def test_offsets_by_position_and_time(on_broker: Parley, send: Send, topic: str) -> None:
    now = 1_795_000_000_000
    send(topic, [now, now + 10, now + 5])
    assert on_broker("offsets", "--topic", topic).lines == [f"{topic}:0:3", f"{topic}:1:0"]
    assert on_broker("offsets", "--topic", topic, "--time", "-2").lines == [f"{topic}:0:0", f"{topic}:1:0"]
    assert on_broker("offsets", "--topic", topic, "--time", "max-timestamp").lines == [f"{topic}:0:1"]
    assert on_broker("offsets", "--topic", topic, "--time", str(now + 1)).lines == [f"{topic}:0:1"]
    assert on_broker("offsets", "--topic", topic, "--time", str(now + 11)).lines == []
    assert on_broker("offsets", "--topic-partitions", f"{topic}:1").lines == [f"{topic}:1:0"]
    (found,) = json.loads(on_broker("offsets", "--topic", topic, "--partitions", "0", "--json").out)
    assert (found["topic"], found["partition"], found["offset"]) == (topic, 0, 3)


def test_no_partition_matches(on_broker: Parley) -> None:
    typed = on_broker("offsets", "--topic", "nowhere")
    assert typed.code == 1
    assert "No partition matches" in typed.err


def test_parse_time() -> None:
    assert [parse_time(text) for text in ("latest", "earliest", "-3", "0", "1735689600000")] == [
        -1,
        -2,
        -3,
        0,
        1_735_689_600_000,
    ]
    for wrong in ("soon", "-7", "1.5", ""):
        with pytest.raises(CommandError):
            parse_time(wrong)


def test_parse_patterns() -> None:
    patterns = parse_patterns("a:1,b:2-4,c:3-,d:-2,e,:7")
    partitions = [(topic, index) for topic in "abcdef" for index in range(9)]
    matched = [where for where in partitions if any(pattern.matches(*where) for pattern in patterns)]
    assert [index for topic, index in matched if topic == "a"] == [1, 7]
    assert [index for topic, index in matched if topic == "b"] == [2, 3, 7]
    assert [index for topic, index in matched if topic == "c"] == [3, 4, 5, 6, 7, 8]
    assert [index for topic, index in matched if topic == "d"] == [0, 1, 7]
    assert [index for topic, index in matched if topic == "e"] == list(range(9))
    assert [index for topic, index in matched if topic == "f"] == [7]
    with pytest.raises(CommandError):
        parse_patterns("a:b")


def test_records_are_deleted(on_broker: Parley, send: Send, topic: str, tmp_path: Path) -> None:
    send(topic, [0] * 10)
    plan = tmp_path / "plan.json"
    rows = [{"topic": topic, "partition": 0, "offset": 4}, {"topic": topic, "partition": 1, "offset": -1}]
    plan.write_text(json.dumps({"partitions": rows, "version": 1}))
    done = on_broker("delete-records", "--offset-json-file", str(plan))
    assert done.code == 0
    assert done.lines == [
        "Executing records delete operation",
        "Records delete operation completed:",
        f"partition: {topic}-0\tlow_watermark: 4",
        f"partition: {topic}-1\tlow_watermark: 0",
    ]
    assert on_broker("offsets", "--topic", topic, "--time", "earliest").lines[0] == f"{topic}:0:4"


def test_records_that_cannot_be_deleted(on_broker: Parley, send: Send, topic: str, tmp_path: Path) -> None:
    rows = [{"topic": topic, "partition": 0, "offset": 99}, {"topic": "nowhere", "partition": 0, "offset": 1}]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": rows}))
    done = on_broker("delete-records", "--offset-json-file", str(plan))
    assert done.code == 1
    assert "OFFSET_OUT_OF_RANGE" in done.out
    assert "UNKNOWN_TOPIC_OR_PARTITION" in done.out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"partitions": [{}]}',
        '{"partitions": [{"topic": "t", "partition": "0", "offset": 1}]}',
        '{"partitions": [], "version": 2}',
        '{"partitions": [{"topic":"t","partition":0,"offset":1},{"topic":"t","partition":0,"offset":2}]}',
    ],
)
def test_an_invalid_plan(text: str) -> None:
    with pytest.raises(CommandError):
        parse_plan(text)
