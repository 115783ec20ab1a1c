"""``parley balance``: its options, recorded clusters, and what it prints. Moves are tested in tests/system."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley import Broker
from parley.tools.balance.cluster import Broker as Node
from parley.tools.balance.cluster import Cluster, Partition
from parley.tools.balance.example import example, large
from parley.tools.balance.explanation import as_data, lines
from parley.tools.balance.plan import Goals
from parley.tools.balance.planner import plan
from parley.tools.balance.recording import as_data as recorded_data
from parley.tools.balance.recording import from_data
from parley.tools.cli.json_shapes import SHAPES, differences
from tests.tools.balance.clusters import clusters
from tests.tools.conftest import Parley


@given(clusters())
def test_a_recorded_cluster_is_read_again(cluster: Cluster) -> None:
    assert from_data(json.loads(json.dumps(recorded_data(cluster)))) == cluster


@given(clusters(), st.sets(st.integers(0, 6), max_size=2))
def test_every_plan_is_described(cluster: Cluster, emptied: set[int]) -> None:
    goals = Goals(emptied=frozenset(emptied))
    made = plan(cluster, goals)
    text = lines(cluster, made, goals)
    data = as_data(cluster, made, goals)
    assert any("Nothing moves" in line for line in text) == (made.is_empty and not made.stranded)
    assert differences(json.loads(json.dumps(data)), SHAPES["balance --plan"][1]) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "not a recorded cluster"),
        ({"brokers": None}, 'missing list of objects "brokers"'),
        ({"brokers": [{"id": 1}, {"id": 1}]}, "duplicate broker"),
        ({"brokers": [{"id": "1"}]}, '"id" must be a whole number'),
        ({"brokers": [{"id": 1, "rack": 1}]}, "rack"),
        ({"partitions": [{"topic": "t", "index": 0, "replicas": [1, 1]}]}, "two replicas on one broker"),
        ({"partitions": [{"topic": "t", "index": 0, "replicas": []}]}, "no replicas"),
        ({"partitions": [{"index": 0}]}, "no topic"),
    ],
)
def test_a_file_with_something_else(parley: Parley, tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({**recorded_data(example()), **change}))
    typed = parley("balance", "--plan", "--recorded", str(path))
    assert typed.code == 1
    assert said in typed.err


def test_the_example_is_balanced(parley: Parley, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(recorded_data(example())))
    typed = parley("balance", "--plan", "--recorded", str(path))
    assert typed.code == 0
    assert any(line.startswith("Broker 4 gets ") for line in typed.lines)
    data = json.loads(parley("balance", "--plan", "--recorded", str(path), "--json").out)
    assert data["skew"]["after"] < data["skew"]["before"] / 10
    emptied = json.loads(parley("balance", "--plan", "--recorded", str(path), "--empty-broker", "2", "--json").out)
    (gone,) = [each for each in emptied["brokers"] if each["broker"] == 2]
    assert set(gone["after"].values()) == {0}


@pytest.mark.slow
def test_a_long_plan_lists_its_first_moves() -> None:
    cluster = large(7, 400)
    goals = Goals()
    text = lines(cluster, plan(cluster, goals), goals)
    assert text[-1].endswith("more; --json lists all")


def test_a_broker_that_is_down_is_named_and_counts_in_no_share() -> None:
    pairs = [(1, 2), (2, 3), (3, 1)] * 12
    partitions = tuple(Partition("t", index, pair, pair[0]) for index, pair in enumerate(pairs))
    cluster = Cluster((Node(1), Node(2), Node(4)), partitions)
    goals = Goals()
    text = lines(cluster, plan(cluster, goals), goals)
    assert any(line.startswith("Broker 3 is not running. Its 24 replicas stay on it") for line in text)
    assert not any("balanced: " in line for line in text), "16 replicas on each of three brokers"
    assert any("its share is 16" in line for line in text)


def test_replicas_that_cannot_leave_a_broker_are_named() -> None:
    cluster = replace(example(), brokers=(Node(1), Node(2)))
    goals = Goals(emptied=frozenset({2}))
    text = lines(cluster, plan(cluster, goals), goals)
    assert (
        "orders-0 keeps its replica on the broker that is to be emptied: every other broker already holds a replica."
        in text
    )


def test_one_broker_is_balanced(on_broker: Parley, broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    typed = on_broker("balance", "--plan", "--interval", "0.1", "--record", str(path))
    assert typed.code == 0, typed.err
    assert typed.lines[-1].startswith("Nothing moves: ")
    assert from_data(json.loads(path.read_text())).brokers[0].id == broker.server.identity.broker_id
    held = json.loads(on_broker("balance", "--holds", str(broker.server.identity.broker_id), "--json").out)
    assert differences(held, SHAPES["balance --holds"][1]) == []
    typed = on_broker("balance", "--execute", "--interval", "0", "--throttle", "1000000")
    assert (typed.code, typed.lines[-1].startswith("Nothing moves: ")) == (0, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--interval", "1"), "Name exactly one of --plan, --execute, --holds."),
        (("--plan", "--execute"), "not --plan and --execute together"),
        (("--execute", "--recorded", "x"), "--record and --recorded go with --plan."),
        (("--plan", "--recorded", "/no/such/file"), "cannot be read"),
        (("--plan", "--empty-broker", "x", "--recorded", "y"), "--empty-broker takes broker ids"),
    ],
)
def test_wrong_usage(parley: Parley, words: tuple[str, ...], said: str) -> None:
    typed = parley("balance", *words)
    assert typed.code == 1
    assert said in typed.err
    assert not typed.out
