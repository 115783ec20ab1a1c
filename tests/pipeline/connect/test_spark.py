"""Tasks on Spark: many in one streaming query, and none that stops another."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parley import Broker
from parley.pipeline.connect.herder import State, TargetState, TaskId
from tests.pipeline.connect.driving import create, driven, produce, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SINKS = 12


def noted(folder: Path, topic: str, count: int) -> list[list[Any]]:
    """What was noted of a topic, once it is so much."""

    def look() -> list[list[Any]]:
        lines = [line for file in folder.glob("notes-*") for line in file.read_text().splitlines(keepends=True)]
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [one for one in found if one[0] == topic]

    found: list[list[Any]] = until(look, lambda found: len(found) >= count)
    return found


def test_many_connectors_in_one_query(
    spark: SparkSession, connect_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.pipeline.connect.spark._GATHER_S", 60.0)  # however slowly the second process begins
    bootstrap = connect_broker.bootstrap_servers
    topics = [f"spark-{number}" for number in range(SINKS)]
    for topic in topics:
        create(bootstrap, topic)
        produce(bootstrap, topic, ["a", "b"])
    with driven(bootstrap, tmp_path, tasks_engine="spark", spark_hosts="2") as worker:
        for topic in topics:
            worker.run(topic, "Notes", topics=topic, folder=tmp_path)
        for topic in topics:
            worker.told.wait(TaskId(topic, 0), State.RUNNING)
            noted(tmp_path, topic, 2)
        assert [query.name for query in spark.streams.active] == ["parley-connect"]
        assert len({file.name.split("-")[1] for file in tmp_path.glob("notes-*")}) == 2

        # One fails, one is paused: the others go on, and one more begins.
        produce(bootstrap, topics[0], ["raise"])
        trace = worker.told.wait(TaskId(topics[0], 0), State.FAILED)
        assert trace is not None
        assert "ValueError: told to" in trace
        worker.worker.set_target_state(topics[1], TargetState.PAUSED)
        worker.told.wait(TaskId(topics[1], 0), State.PAUSED)
        for topic in topics[1:]:
            produce(bootstrap, topic, ["c"])
        worker.run("numbers", "Counter", topic="numbers", count=30)
        worker.run("numbers-notes", "Notes", topics="numbers", folder=tmp_path)
        noted(tmp_path, "numbers", 30)
        for topic in topics[2:]:
            noted(tmp_path, topic, 3)
        worker.worker.set_target_state(topics[1], TargetState.STARTED)
        noted(tmp_path, topics[1], 3)
        until(lambda: worker.offsets("numbers"), lambda found: found and found[0][1] == {"next": 30})
        for topic in topics[1:]:  # what is not committed is put again
            until(partial(worker.offsets, topic), lambda found: found and found[0][1] == {"kafka_offset": 3})

        # The process of some of them dies: Spark begins another, and all go on.
        produce(bootstrap, topics[2], ["die"])
        noted(tmp_path, topics[2], 4)
        for topic in topics[2:]:
            produce(bootstrap, topic, ["d"])
        for topic in topics[3:]:
            assert sorted(one[3] for one in noted(tmp_path, topic, 4)) == ["a", "b", "c", "d"]
        assert worker.told.states[TaskId(topics[0], 0)] is State.FAILED
    assert spark.streams.active == []
