"""``python -m bench.consumers``: 200 consumers in 20 groups, compared with other brokers.

The consumers are librdkafka's, with its default settings. All groups read one topic of 50 partitions. The program
measures the time until every group has assigned all partitions, and the broker's processor time per second: while the
groups are idle, and while a producer writes 1,000 records per second, which each group reads.
"""

from __future__ import annotations

import threading
import time

from confluent_kafka import Consumer, Producer

from bench.clusters import Measured
from bench.figures import Figures, report
from bench.kinds import single_brokers
from bench.turns import in_turns, turns_parser

TOPIC, PARTITIONS = "read", 50
RATE = 1000
PATIENCE_S = 120.0
SETTLE_S = 3.0
SETTINGS = {"auto.offset.reset": "earliest", "log_level": 0, "fetch.wait.max.ms": 500}


class Groups:
    """Consumers, each in one of the groups. A single thread polls them in turn."""

    def __init__(self, bootstrap: str, consumers: int, groups: int) -> None:
        self._groups = groups
        self._ends = threading.Event()
        self.consumed = 0
        self.assigned = [0] * consumers
        """The number of partitions that each consumer has."""
        self.failure: BaseException | None = None
        self._consumers = [
            Consumer({"bootstrap.servers": bootstrap, "group.id": f"group-{number % groups}", **SETTINGS})
            for number in range(consumers)
        ]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def is_settled(self) -> bool:
        """True if the members of each group together have all partitions."""
        return sum(self.assigned) == self._groups * PARTITIONS and min(self.assigned) > 0

    def _run(self) -> None:
        try:
            for consumer in self._consumers:
                consumer.subscribe([TOPIC])
            while not self._ends.is_set():
                for number, consumer in enumerate(self._consumers):
                    self.consumed += sum(not message.error() for message in consumer.consume(1000, timeout=0))
                    self.assigned[number] = len(consumer.assignment())
                self._ends.wait(0.01)
        except BaseException as error:  # the measuring thread raises it
            self.failure = error

    def wait_until(self, settled: bool, records: int = 0) -> float:
        """Wait until the groups have settled, or, without ``settled``, until they have read ``records`` records
        altogether. Returns the seconds. Raises TimeoutError after ``PATIENCE_S``, and the error of the thread that
        polls."""
        began = time.perf_counter()
        while not (self.is_settled if settled else self.consumed >= records):
            if self.failure is not None:
                raise self.failure
            if time.perf_counter() - began > PATIENCE_S:
                raise TimeoutError(f"after {PATIENCE_S:g} s the groups have {sum(self.assigned)} partitions")
            time.sleep(0.02)
        return time.perf_counter() - began

    def close(self) -> None:
        """Leave the groups."""
        self._ends.set()
        self._thread.join()
        closing = [threading.Thread(target=consumer.close) for consumer in self._consumers]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()


def write(bootstrap: str, seconds: float) -> int:
    """Produce records at a steady rate for ``seconds`` seconds. Returns their number."""
    began, total = time.perf_counter(), int(RATE * seconds)
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}) as producer:
        for number in range(total):
            while (left := began + number / RATE - time.perf_counter()) > 0:
                producer.poll(left)
            producer.produce(TOPIC, b"x" * 100, partition=number % PARTITIONS)
    return total


def measure(broker: Measured, consumers: int, groups: int, seconds: float, figures: Figures) -> None:
    """Measure a broker for one turn, and add the results to ``figures``."""
    broker.create_topic(TOPIC, PARTITIONS)
    written = write(broker.bootstrap, 1.0)
    label = f"{consumers} consumers in {groups} groups"
    cpu = broker.cpu_seconds()
    reading = Groups(broker.bootstrap, consumers, groups)
    try:
        figures[f"{label}: all partitions assigned after, s", broker.name].append(reading.wait_until(True))
        reading.wait_until(False, groups * written)
        figures[f"{label}: broker CPU s until then", broker.name].append(broker.cpu_seconds() - cpu)
        time.sleep(SETTLE_S)
        cpu = broker.cpu_seconds()
        time.sleep(seconds)
        idle = (broker.cpu_seconds() - cpu) / seconds
        figures[f"{label}, idle: broker CPU ms per second", broker.name].append(1000 * idle)
        before, cpu = reading.consumed, broker.cpu_seconds()
        written = write(broker.bootstrap, seconds)
        reading.wait_until(False, before + groups * written)
        busy = (broker.cpu_seconds() - cpu) / written
        figures[f"{label}: broker CPU us per record written and read {groups} times", broker.name].append(1e6 * busy)
    finally:
        reading.close()


def main() -> None:
    parser = turns_parser("bench.consumers", __doc__, rounds=2)
    parser.add_argument("--consumers", type=int, default=200)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long the groups are idle, and read")
    given = parser.parse_args()
    report(
        in_turns(
            single_brokers(given.alone, peers=True),
            given.rounds,
            lambda broker, figures: measure(broker, given.consumers, given.groups, given.seconds, figures),
        )
    )


if __name__ == "__main__":
    main()
