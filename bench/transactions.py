"""``python -m bench.transactions``: transactions per second, their latency and their cost, beside Apache Kafka.

Each producer writes one record of 100 B to each partition in a transaction, waits for them, and commits. A commit takes
from the call until the response. The clients (librdkafka) share the machine's cores with the broker.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Producer

from bench.__main__ import Figures, table
from bench.clusters import KAFKA, Kafka, Measured, Parley

PARTITIONS = 6
VALUE = b"v" * 100
WARM_UP_S = 3.0
WAIT_S = 60.0


class Load:
    """Producers with a transactional id each, and how long their commits took, in seconds."""

    def __init__(self, bootstrap: str, topic: str, producers: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._ends = threading.Event()
        self.commits: list[float] = []
        self._threads = [threading.Thread(target=self._produce, args=(number,)) for number in range(producers)]
        for thread in self._threads:
            thread.start()

    def _produce(self, number: int) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": f"{self._topic}-{number}", "linger.ms": 0}
        )
        producer.init_transactions(WAIT_S)
        while not self._ends.is_set():
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(self._topic, VALUE, partition=partition)
            producer.flush()
            began = time.perf_counter()
            producer.commit_transaction(WAIT_S)
            self.commits.append(time.perf_counter() - began)

    def end(self) -> None:
        """Stop all producers after their current transactions."""
        self._ends.set()
        for thread in self._threads:
            thread.join()


def measure(broker: Measured, producers: list[int], seconds: float, figures: Figures) -> None:
    """Measure one turn of one broker."""
    broker.start()
    try:
        for count in producers:
            topic = f"written-by-{count}"
            broker.create_topic(topic, PARTITIONS)
            load = Load(broker.bootstrap, topic, count)
            time.sleep(WARM_UP_S)
            first, cpu, began = len(load.commits), broker.cpu_seconds(), time.perf_counter()
            time.sleep(seconds)
            took, cpu = time.perf_counter() - began, broker.cpu_seconds() - cpu
            commits = sorted(load.commits[first:])
            load.end()
            if not commits:
                raise SystemExit(f"{broker.name} committed no transaction in {took:.0f} s")
            label = f"{count} producer{'s' if count > 1 else ''}"
            figures[f"{label}: transactions/s", broker.name].append(len(commits) / took)
            figures[f"{label}: commit p50, ms", broker.name].append(1000 * commits[len(commits) // 2])
            figures[f"{label}: commit p99, ms", broker.name].append(1000 * commits[len(commits) * 99 // 100])
            figures[f"{label}: broker CPU ms per transaction", broker.name].append(1000 * cpu / len(commits))
    finally:
        broker.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.transactions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="number of turns of each broker")
    parser.add_argument("--producers", type=int, nargs="+", default=[1, 50], help="numbers of producers")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each load is measured")
    parser.add_argument("--alone", action="store_true", help="measure Parley only")
    given = parser.parse_args()
    kinds: list[type[Measured]] = [Parley]
    if not given.alone and KAFKA.exists():
        kinds.insert(0, Kafka)
    figures: Figures = defaultdict(list)
    for turn in range(given.rounds):
        for kind in kinds:
            print(f"turn {turn + 1}: {kind.name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                measure(kind(Path(folder) / "broker"), given.producers, given.seconds, figures)
    print(table(figures))


if __name__ == "__main__":
    main()
