"""``parley balance`` on real clusters: a broker is added, a killed execution continues, a broker is emptied."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from parley.protocol.client import Client
from parley.tools.cli.reassign import requests
from parley.tools.ending_with_parent import ending_with_parent
from tests.support.preloaded import preloaded_command
from tests.system.clusters import POLL_S, SETTINGS, ClusterOfProcesses, losing_nothing
from tests.system.running import BrokerProcess

SLOW = "20000"
"""Bytes per second at which a follower fetches a megabyte of each partition every 11 seconds."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfProcesses]:
    with ClusterOfProcesses(tmp_path).running() as running:
        yield running


def command(cluster: ClusterOfProcesses, *words: str) -> list[str]:
    address = cluster.brokers[1].bootstrap_servers
    return preloaded_command("balance", "--bootstrap-server", address, *words)


def typed(cluster: ClusterOfProcesses, *words: str) -> str:
    done = subprocess.run(command(cluster, *words), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def planned(cluster: ClusterOfProcesses, *words: str) -> dict[str, Any]:
    """Return the plan as data. Rates are not measured, because the producers' rates differ each time."""
    found: dict[str, Any] = json.loads(typed(cluster, "--plan", "--interval", "0", "--json", *words))
    return found


def fill(cluster: ClusterOfProcesses, topic: str, partitions: int) -> None:
    """Write four megabytes to each partition, and create ``__consumer_offsets``."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for partition in range(partitions):
        for _ in range(40):
            producer.produce(topic, bytes(100_000), partition=partition)
    assert producer.flush(120) == 0

    async def offsets() -> None:
        async with Client(cluster.bootstrap_servers) as client:
            await client.coordinator("a-group")

    asyncio.run(offsets())


def ongoing(cluster: ClusterOfProcesses) -> int:
    async def ask() -> int:
        async with Client(cluster.bootstrap_servers) as client:
            return len(await requests.ongoing(client))

    return asyncio.run(ask())


def throttles(cluster: ClusterOfProcesses, topic: str) -> list[str]:
    """Return the throttles of a topic and of broker 1, as ``parley configs --describe`` prints them."""
    found = []
    for entity in (("topics", topic), ("brokers", "1")):
        done = subprocess.run(
            preloaded_command(
                *("configs", "--bootstrap-server", cluster.bootstrap_servers),
                *("--describe", "--entity-type", entity[0], "--entity-name", entity[1]),
            ),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        found += [line for line in done.stdout.splitlines() if "replication.throttled" in line]
    return found


def join(cluster: ClusterOfProcesses, number: int) -> None:
    """Start a fourth broker of the cluster."""
    added = BrokerProcess(cluster.folder / f"broker-{number}")
    store = {"coordination.url": f"local://{cluster.folder}/coordination"}
    added.overrides.update({**SETTINGS, **store, "broker.id": str(number)})
    cluster.brokers[number] = added
    added.start()


def test_a_broker_is_added_and_another_one_is_emptied(cluster: ClusterOfProcesses) -> None:
    cluster.create_topic("data", 4)
    fill(cluster, "data", 4)
    with losing_nothing(cluster, "produced") as running:
        running.wait_for_acknowledged(50)
        join(cluster, 4)
        plan = planned(cluster)
        assert any(4 in move["after"] for move in plan["moves"])

        # Killed in the middle, with a throttle.
        with subprocess.Popen(
            ending_with_parent(command(cluster, "--execute", "--interval", "0", "--throttle", SLOW), signal.SIGKILL),
            stdout=subprocess.DEVNULL,
        ) as executing:
            while not ongoing(cluster):
                assert executing.poll() is None
                time.sleep(POLL_S)
            executing.kill()
        assert throttles(cluster, "data")

        # Continued.
        said = typed(cluster, "--execute", "--interval", "0", "--throttle", "100000000")
        assert "Already moving: " in said
        assert "The throttles are removed." in said
        assert ongoing(cluster) == 0
        assert throttles(cluster, "data") == []
        assert planned(cluster, "--tolerance", "50")["moves"] == [], "producers go on, so that disks differ a little"
        running.wait_for_acknowledged(50)

        # Emptied, with the offsets of groups.
        held = typed(cluster, "--holds", "2")
        assert "__consumer_offsets-" in held
        typed(cluster, "--execute", "--empty-broker", "2", "--interval", "0")
        assert typed(cluster, "--holds", "2").startswith("Broker 2 holds 0 replicas")
        cluster.brokers[2].stop()
        running.wait_for_acknowledged(50)
    cluster.start_all()
