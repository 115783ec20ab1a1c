"""``python -m bench --cluster``: three brokers with replication factor 3, compared with Apache Kafka, with the same
client.

Each turn starts a new cluster of each kind and measures: producing with ``acks=all`` at full speed (CPU time of all
brokers per GB, and records per second), the acknowledgement latency at 1000 records per second, and how long a producer
waits after the leader is killed with ``kill -9``. That producer has librdkafka's default settings. Its acknowledgements
are compared with the records that can be read afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.clusters import KAFKA, Kafka, Measured, free_port
from bench.figures import Figures, Found
from bench.replication import BROKERS, NO_SETTINGS, SMALL_BATCHES, ReplicatedCluster
from bench.turns import in_turns
from parley.tools.checker import Trial

LATENCY_RATE, LATENCY_SECONDS = 1000, 10
FAILOVER_RATE = 1000
RECOVERY_SECONDS_MAX = 120.0
DEFAULT_CLIENT = {
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 10_000,
    "retry.backoff.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 100,
}
"""librdkafka's defaults of the settings that the history checker shortens."""


class KafkaMember(Kafka):
    """An Apache Kafka node of a cluster, both broker and controller."""

    def __init__(self, folder: Path, broker_id: int, controllers: list[int], extra: Mapping[str, str]) -> None:
        super().__init__(folder)
        self._extra = extra
        self.broker_id = broker_id
        self._controllers = controllers

    def settings(self) -> dict[str, str]:
        """Return the node's properties, in addition to those of a single broker."""
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(self._controllers, start=1))
        return {
            "node.id": str(self.broker_id),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controllers[self.broker_id - 1]}",
            "offsets.topic.replication.factor": str(BROKERS),
            "transaction.state.log.replication.factor": str(BROKERS),
            "transaction.state.log.min.isr": "2",
            **self._extra,
        }


class KafkaCluster(ReplicatedCluster):
    """An Apache Kafka cluster of three nodes."""

    name = Kafka.name

    def __init__(self, folder: Path, extra: Mapping[str, str] = NO_SETTINGS) -> None:
        controllers = [free_port() for _ in range(BROKERS)]
        self.members: list[Measured] = [
            KafkaMember(folder / f"broker-{number}", number, controllers, extra) for number in range(1, BROKERS + 1)
        ]

    def start(self) -> float:
        """Start all nodes together, because a single node has no quorum and does not respond. Returns the seconds until
        all of them respond."""
        began = time.perf_counter()
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_until_ready()
        return time.perf_counter() - began

    def stop(self) -> None:
        """Kill all nodes. A clean shutdown waits for a quorum, which the last nodes do not have."""
        for member in self.members:
            if member.process is not None:
                member.process.kill()
        super().stop()


def latencies_ms(bootstrap: str, topic: str) -> list[float]:
    """Send records at a steady rate. Returns the time from sending to acknowledgement of each, in milliseconds, without
    the first second, which is a warm-up."""
    found: list[float] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})

    def on_delivery(sent: float) -> Callable[[Any, Any], None]:
        return lambda error, message: found.append((time.perf_counter() - sent) * 1000)

    began = time.perf_counter()
    for number in range(LATENCY_RATE * LATENCY_SECONDS):
        due = began + number / LATENCY_RATE
        while (left := due - time.perf_counter()) > 0:
            producer.poll(left)
        producer.produce(topic, b"x" * 100, partition=0, on_delivery=on_delivery(time.perf_counter()))
    producer.flush()
    return found[LATENCY_RATE:]  # the first second warms up


def failover(cluster: ReplicatedCluster) -> tuple[float, int]:
    """Kill the leader. Returns the producer's pause in seconds, and the number of violations that the checker found."""
    trial = Trial(cluster.bootstrap, "failover", partitions=1, readers=0, rate=FAILOVER_RATE, client=DEFAULT_CLIENT)
    trial.create_topic(BROKERS)
    with trial:
        trial.wait_for_acknowledged(3 * FAILOVER_RATE)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        leader = admin.list_topics("failover", timeout=30).topics["failover"].partitions[0].leader
        process = cluster.members[leader - 1].process
        assert process is not None
        process.kill()
        trial.wait_for_acknowledged(3 * FAILOVER_RATE, within_s=RECOVERY_SECONDS_MAX)
    verdict = trial.verdict()
    return verdict.longest_pause_s, len(verdict.violations)


def produce(cluster: ReplicatedCluster, label: str, size: int, total: int, extra: list[str], figures: Figures) -> None:
    """Produce ``total`` bytes of records of ``size`` bytes at full speed to six partitions, and add the results to
    ``figures``. ``extra`` are further options of ``bench.load``."""
    topic = f"bench-{len(figures)}"
    cluster.create_topic(topic, 6)
    before = cluster.cpu_seconds()
    command = [sys.executable, "-m", "bench.load", "produce", cluster.bootstrap, topic, "--size", str(size)]
    command += ["--partitions", "6", "--bytes", str(total), "--set", "acks=all", *extra]
    result: Any = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    cpu = (cluster.cpu_seconds() - before) / (result["bytes"] / 1e9)
    cluster.delete_topic(topic)
    figures[f"produce {label}: broker CPU s/GB", cluster.name].append(cpu)
    figures[f"produce {label}: records/s", cluster.name].append(result["records"] / result["seconds"])


def measure(cluster: ReplicatedCluster, sizes: list[int], total: int, figures: Figures) -> None:
    """Measure a cluster for one turn, and add the results to ``figures``."""
    figures["start of three, s", cluster.name].append(cluster.start())
    produce(cluster, "warm-up", 100, total // 4, [], defaultdict(list))
    for size in sizes:
        produce(cluster, f"{size} B, 6 partitions", size, total, [], figures)
        produce(cluster, f"{size} B, 16 KB batches", size, total // 2, SMALL_BATCHES, figures)
    cluster.create_topic("latency", 1)
    found = sorted(latencies_ms(cluster.bootstrap, "latency"))
    for percent in (50, 99):
        figures[f"latency at {LATENCY_RATE}/s, p{percent} ms", cluster.name].append(found[len(found) * percent // 100])
    figures["resident memory of three, MB", cluster.name].append(
        sum(member.resident_mb() for member in cluster.members)
    )
    pause, broken = failover(cluster)
    figures["pause after kill -9 of the leader, s", cluster.name].append(pause)
    figures["rules broken by that", cluster.name].append(broken)


def clusters(alone: bool) -> list[type[ReplicatedCluster]]:
    """Return the clusters to measure: Parley's, and Apache Kafka's unless it is not installed or ``alone`` is set."""
    return [ReplicatedCluster] if alone or not KAFKA.exists() else [KafkaCluster, ReplicatedCluster]


def run(rounds: int, sizes: list[int], total: int, *, alone: bool) -> Found:
    """Measure this many turns of each cluster. Returns the figures."""
    return in_turns(
        clusters(alone), rounds, lambda cluster, figures: measure(cluster, sizes, total, figures), starts=False
    )
