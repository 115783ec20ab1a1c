"""``python -m bench.replication``: the cost of replication, as CPU time of all brokers per GB produced.

A client produces to three brokers with ``acks=all`` and replication factor 3: with librdkafka's largest batches, and
with batches of 16 KB (the Java client's default). Then it does the same with many idle partitions, which must add
almost no cost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.clusters import Measured, Parley, free_port

BROKERS = 3
SETTLE_S = 2.0
SMALL_BATCHES = ["--set", "batch.size=16384"]
NO_SETTINGS: Mapping[str, str] = {}


class Member(Parley):
    """A broker of a cluster on one machine."""

    def __init__(self, folder: Path, broker_id: int, store: Path, extra: Mapping[str, str]) -> None:
        super().__init__(folder)
        self._extra = extra
        self.broker_id = broker_id
        self._store = store

    def command(self) -> list[str]:
        settings = {
            "broker.id": str(self.broker_id),
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.folder / "data"),
            "coordination.url": f"local://{self._store}",
            "metrics.listener": "",
            "offsets.topic.replication.factor": str(BROKERS),
            "transaction.state.log.replication.factor": str(BROKERS),
            "transaction.state.log.min.isr": "2",
            **self._extra,
        }
        words = [word for key, value in settings.items() for word in ("--override", f"{key}={value}")]
        return [sys.executable, "-m", "parley", "start", *words]


class ReplicatedCluster:
    """Several brokers whose CPU time is added up."""

    name = Parley.name

    def __init__(self, folder: Path, extra: Mapping[str, str] = NO_SETTINGS) -> None:
        """``extra`` contains additional settings for all brokers."""
        self.members: list[Measured] = [
            Member(folder / f"broker-{i}", i, folder / "coordination", extra) for i in range(1, BROKERS + 1)
        ]

    @property
    def bootstrap(self) -> str:
        return ",".join(member.bootstrap for member in self.members)

    def start(self) -> float:
        began = time.perf_counter()
        for member in self.members:
            member.start()
        return time.perf_counter() - began

    def create_topic(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, BROKERS)])[topic].result()
        time.sleep(SETTLE_S)

    def delete_topic(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([topic])[topic].result()

    def cpu_seconds(self) -> float:
        return sum(member.cpu_seconds() for member in self.members)

    def stop(self) -> None:
        for member in self.members:
            member.stop()


def produce(cluster: ReplicatedCluster, topic: str, partitions: int, size: int, total: int, extra: list[str]) -> str:
    """Produce, and format a line with records per second and broker CPU seconds per GB."""
    cluster.create_topic(topic, partitions)
    before = cluster.cpu_seconds()
    command = [sys.executable, "-m", "bench.load", "produce", cluster.bootstrap, topic, "--size", str(size)]
    command += ["--partitions", str(partitions), "--bytes", str(total), "--set", "acks=all", *extra]
    result: Any = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    cpu = (cluster.cpu_seconds() - before) / (result["bytes"] / 1e9)
    cluster.delete_topic(topic)
    return f"{result['records'] / result['seconds']:>12,.0f} records/s {cpu:>8.1f} broker CPU s/GB"


def idle(cluster: ReplicatedCluster, seconds: float) -> float:
    """Return the CPU seconds per second that the idle brokers take together, measured for ``seconds``."""
    before = cluster.cpu_seconds()
    time.sleep(seconds)
    return (cluster.cpu_seconds() - before) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replication", description=__doc__)
    parser.add_argument("--mb", type=int, default=300, help="megabytes of each measurement")
    parser.add_argument("--sizes", default="100,1024", help="record sizes in bytes")
    parser.add_argument("--partitions", default="1,6", help="numbers of partitions")
    parser.add_argument("--idle", type=int, default=1000, help="number of idle partitions of the last part; 0 skips it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        cluster = ReplicatedCluster(Path(folder))
        try:
            cluster.start()
            produce(cluster, "warm-up", 1, 100, 50_000_000, [])
            measure(cluster, given, "")
            if given.idle:
                cluster.create_topic("idle", given.idle)
                time.sleep(5 * SETTLE_S)
                print(f"{given.idle} idle partitions: {idle(cluster, 10):.3f} CPU s per second", flush=True)
                measure(cluster, given, f" beside {given.idle} idle")
        finally:
            cluster.stop()


def measure(cluster: ReplicatedCluster, given: argparse.Namespace, label: str) -> None:
    for size in map(int, given.sizes.split(",")):
        for partitions in map(int, given.partitions.split(",")):
            for name, extra in (("", []), (", 16 KB batches", SMALL_BATCHES)):
                total = given.mb * 1_000_000
                line = produce(cluster, f"bench-{free_port()}", partitions, size, total, extra)
                print(f"{f'{size} B, p{partitions}{name}{label}':<44} {line}", flush=True)


if __name__ == "__main__":
    main()
