"""``python -m bench.transactions``: transactions per second, their latency and their cost, compared with Apache Kafka.

Each producer writes one record of 100 B to each partition in a transaction, waits for them, and commits. The duration
of a commit is that of the call. The clients (librdkafka) share the machine's cores with the broker.

First, every producer begins its next transaction as soon as the last one is committed. A broker that commits more in
that time has longer queues, so the times of two brokers are comparable only at equal transactions per second.
Therefore, the producers then send the same number of transactions per second to both (``--offered``). The duration of
such a transaction counts from the time at which it was due, however late it begins.

Finally, the CPU time per GB is measured: records are produced in transactions of 50,000, and fetched by a consumer that
reads committed records only.

``--cluster`` measures three brokers with replication factor 3. Records and transaction state are then stored when all
in-sync replicas have them.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from confluent_kafka import Producer

from bench.__main__ import load
from bench.clusters import Measured
from bench.figures import Figures, report
from bench.kinds import kinds_of
from bench.replication import ReplicatedCluster
from bench.turns import in_turns, turns_parser

PARTITIONS = 6
VALUE = b"v" * 100
WARM_UP_S = 3.0
WAIT_S = 60.0


class Load:
    """Producers, each with a transactional id, and the durations of their transactions and commits in seconds."""

    def __init__(self, bootstrap: str, topic: str, producers: int, offered: float | None = None) -> None:
        """``offered`` is the number of transactions per second of all producers together; None for as many
        as possible."""
        self._bootstrap = bootstrap
        self._topic = topic
        self._ends = threading.Event()
        self._pause = None if offered is None else producers / offered
        self._offered = offered or 1.0
        self._initialized = threading.Barrier(producers + 1, timeout=2 * WAIT_S)
        self.times: list[tuple[float, float]] = []
        """The durations of each transaction and of its commit."""
        self._threads = [threading.Thread(target=self._produce, args=(number,)) for number in range(producers)]
        for thread in self._threads:
            thread.start()
        self._initialized.wait()

    def _produce(self, number: int) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": f"{self._topic}-{number}", "linger.ms": 0}
        )
        producer.init_transactions(WAIT_S)
        self._initialized.wait()
        due = time.perf_counter() + number / self._offered
        while not self._ends.is_set():
            if self._pause is None:
                due = time.perf_counter()
            elif self._ends.wait(max(0.0, due - time.perf_counter())):
                break
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(self._topic, VALUE, partition=partition)
            producer.flush()
            began = time.perf_counter()
            producer.commit_transaction(WAIT_S)
            ended = time.perf_counter()
            self.times.append((ended - due, ended - began))
            due += self._pause or 0.0

    def end(self) -> None:
        """Stop all producers after their current transactions."""
        self._ends.set()
        for thread in self._threads:
            thread.join()


def measure_times(
    broker: Measured | ReplicatedCluster, producers: list[int], offered: list[float], seconds: float, figures: Figures
) -> None:
    """Measure small transactions with several numbers of producers, and with the largest number at a given rate. Raises
    SystemExit if none is committed."""
    loads: list[tuple[str, int, float | None]]
    loads = [(f"{count} producer{'s' if count > 1 else ''}", count, None) for count in producers]
    most = max(producers)
    loads += [(f"{most} producers, {rate:g} tx/s offered", most, rate) for rate in offered]
    for number, (label, count, rate) in enumerate(loads):
        topic = f"written-{number}"
        broker.create_topic(topic, PARTITIONS)
        transactions = Load(broker.bootstrap, topic, count, rate)
        time.sleep(WARM_UP_S)
        first, cpu, began = len(transactions.times), broker.cpu_seconds(), time.perf_counter()
        time.sleep(seconds)
        took, cpu = time.perf_counter() - began, broker.cpu_seconds() - cpu
        times = transactions.times[first:]
        transactions.end()
        if not times:
            raise SystemExit(f"{broker.name} committed no transaction in {took:.0f} s")
        figures[f"{label}: transactions/s", broker.name].append(len(times) / took)
        for kind, each in (("transaction", [all for all, _ in times]), ("commit", [commit for _, commit in times])):
            each.sort()
            figures[f"{label}: {kind} p50, ms", broker.name].append(1000 * each[len(each) // 2])
            figures[f"{label}: {kind} p99, ms", broker.name].append(1000 * each[len(each) * 99 // 100])
        figures[f"{label}: broker CPU ms per transaction", broker.name].append(1000 * cpu / len(times))


def measure_cost(broker: Measured | ReplicatedCluster, total: int, figures: Figures) -> None:
    """Measure the CPU time per GB of transactional records, after a load that warms up the JVM."""
    not_kept: Figures = defaultdict(list)
    for topic, size, found in (("warm-up", 100, not_kept), ("bulk-100", 100, figures), ("bulk-1024", 1024, figures)):
        broker.create_topic(topic, PARTITIONS)
        for work, setting in (("produce", f"transactional.id={topic}"), ("consume", "isolation.level=read_committed")):
            _, cpu = load(broker, work, topic, size, PARTITIONS, total, [setting])
            found[f"{work} {size} B in transactions: broker CPU s/GB", broker.name].append(cpu)
        broker.delete_topic(topic)


def main() -> None:
    parser = turns_parser("bench.transactions", __doc__, rounds=3)
    parser.add_argument("--producers", type=int, nargs="+", default=[1, 50], help="numbers of producers")
    parser.add_argument("--offered", type=float, nargs="*", default=[50, 150], help="transactions per second to offer")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each load is measured")
    parser.add_argument("--mb", type=int, default=200, help="megabytes of each measurement of the cost per GB")
    parser.add_argument("--cluster", action="store_true", help="three brokers with replication factor 3")
    given = parser.parse_args()

    def measure(broker: Measured | ReplicatedCluster, figures: Figures) -> None:
        measure_times(broker, given.producers, given.offered, given.seconds, figures)
        measure_cost(broker, given.mb * 1_000_000, figures)

    report(in_turns(kinds_of(given.cluster, given.alone), given.rounds, measure))


if __name__ == "__main__":
    main()
