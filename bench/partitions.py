"""``python -m bench.partitions``: the cost of partitions and of restarts, compared with Apache Kafka.

There is one broker, with topics of ``--per-topic`` partitions. After each creation a client waits until every partition
has a leader, so that a broker gains nothing by responding early. Some partitions (``--used``) get a record, as in most
clusters. A restart ends when the metadata names all leaders. The second restart follows more records and ``kill -9``.
"""

from __future__ import annotations

import os
import signal
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.__main__ import IDLE_SECONDS
from bench.clusters import STOP_SECONDS_MAX, Measured
from bench.figures import Figures, report
from bench.kinds import single_brokers
from bench.turns import in_turns, turns_parser

PATIENCE_S = 600.0


def wait_for_leaders(admin: AdminClient, partitions: int) -> None:
    """Wait until the metadata names a leader for each of this many partitions. Raises SystemExit after
    ``PATIENCE_S``."""
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        topics = admin.list_topics(timeout=PATIENCE_S).topics.values()
        if sum(each.leader >= 0 for topic in topics for each in topic.partitions.values()) >= partitions:
            return
    raise SystemExit("some partitions have no leader")


def open_files(broker: Measured) -> int:
    """Return the number of open file descriptors of the broker."""
    assert broker.process is not None
    return len(os.listdir(f"/proc/{broker.process.pid}/fd"))


def create(broker: Measured, topics: int, per_topic: int, figures: Figures) -> None:
    """Create the topics one after another."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("warm-up", per_topic, 1)], operation_timeout=60)["warm-up"].result()
    wait_for_leaders(admin, per_topic)
    time.sleep(IDLE_SECONDS)
    cpu, memory = broker.cpu_seconds(), broker.resident_mb()
    began, answered = time.perf_counter(), 0.0
    for number in range(topics):
        name, asked = f"topic-{number}", time.perf_counter()
        admin.create_topics([NewTopic(name, per_topic, 1)], operation_timeout=60)[name].result()
        answered += time.perf_counter() - asked
    wait_for_leaders(admin, (topics + 1) * per_topic)
    figures[f"creating {per_topic} partitions, ms", broker.name].append(answered / topics * 1000)
    figures["all created, with leaders, s", broker.name].append(time.perf_counter() - began)
    time.sleep(IDLE_SECONDS)
    count = topics * per_topic
    figures["CPU of creating, us per partition", broker.name].append((broker.cpu_seconds() - cpu) / count * 1e6)
    figures["memory, KB per partition", broker.name].append((broker.resident_mb() - memory) / count * 1000)
    figures["open files afterwards", broker.name].append(open_files(broker))


def use(broker: Measured, topics: int, per_topic: int, used: int) -> None:
    """Write a record to ``used`` partitions, spread over all topics. Raises SystemExit if some are not acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(used):
        producer.produce(f"topic-{number % topics}", b"value", partition=number // topics % per_topic)
        producer.poll(0)
    if producer.flush(PATIENCE_S):
        raise SystemExit("not all records were written")


def restart(broker: Measured, partitions: int, figures: Figures, *, clean: bool) -> None:
    """Stop the broker, cleanly or with ``kill -9``, and start it again."""
    assert broker.process is not None
    after = "a clean stop" if clean else "kill -9"
    began = time.perf_counter()
    broker.process.send_signal(signal.SIGTERM if clean else signal.SIGKILL)
    broker.process.wait(STOP_SECONDS_MAX)
    if clean:
        figures["clean stop, s", broker.name].append(time.perf_counter() - began)
    began = time.perf_counter()
    broker.start()
    wait_for_leaders(AdminClient({"bootstrap.servers": broker.bootstrap}), partitions)
    figures[f"start with all leaders after {after}, s", broker.name].append(time.perf_counter() - began)
    figures[f"CPU of the start after {after}, s", broker.name].append(broker.cpu_seconds())


def measure(broker: Measured, topics: int, per_topic: int, used: int, figures: Figures) -> None:
    """Measure a broker for one turn, and add the results to ``figures``."""
    create(broker, topics, per_topic, figures)
    for clean in (True, False):
        use(broker, topics, per_topic, used)
        restart(broker, (topics + 1) * per_topic, figures, clean=clean)


def main() -> None:
    parser = turns_parser("bench.partitions", __doc__, rounds=3)
    parser.add_argument("--partitions", type=int, default=10_000, help="number of partitions in all")
    parser.add_argument("--per-topic", type=int, default=1000, help="partitions of each topic")
    parser.add_argument("--used", type=int, default=1000, help="number of partitions that get a record")
    given = parser.parse_args()
    topics = given.partitions // given.per_topic
    report(
        in_turns(
            single_brokers(given.alone),
            given.rounds,
            lambda broker, figures: measure(broker, topics, given.per_topic, given.used, figures),
        )
    )


if __name__ == "__main__":
    main()
