"""``python -m bench.metadata``: Metadata requests and topic creation, compared with Apache Kafka with the same clients.

The brokers take turns. Metadata requests are counted per second of the broker's CPU time: for one topic, and for all
100 topics, with 1 partition or 10 partitions each. Half of the turns have no authorizer. In the others the client logs
in as a user that may describe half of the topics, and there are 10,000 ACLs of other users.

Without an authorizer, a topic with many partitions is also created a few times, to measure the response time.
"""

from __future__ import annotations

import time
from collections import defaultdict

from confluent_kafka.admin import AdminClient, NewTopic

from bench.clusters import KAFKA, Kafka, Measured, Parley
from bench.figures import Figures, report
from bench.security import PLAIN_LINE, TOPICS, WAIT_S, SecuredKafka, SecuredParley, Turn, run
from bench.turns import in_turns, turns_parser

LOGIN = [
    "--property=security.protocol=SASL_PLAINTEXT",
    "--property=sasl.mechanism=PLAIN",
    f"--property=sasl.jaas.config={PLAIN_LINE};",
]
PARTITIONS = (1, 10)
"""The partitions of each topic: the initial number, then the number to which the topics grow."""


def measure_requests(
    broker: Measured, address: str, shown: int, count: int, label: str, figures: Figures, words: list[str]
) -> None:
    """Measure the cost of Metadata requests. ``shown`` is the number of topics that the client may see. Raises
    SystemExit if the broker shows another number."""
    for what, topics, number in (("one topic", ["--topic=topic-0"], count), ("all topics", [], count // 4)):
        before = broker.cpu_seconds()
        done = run("bench.secured_load", "metadata", address, "--count", str(number), *topics, *words)
        cpu = broker.cpu_seconds() - before
        if done["topics"] != (1 if topics else shown):
            raise SystemExit(f"{broker.name} shows {done['topics']} topics")
        figures[f"metadata of {what}, {label}: per CPU s", broker.name].append(done["count"] / cpu)


def grow(broker: Measured, partitions: int) -> None:
    """Increase the partitions of every topic to this number."""
    from confluent_kafka.admin import NewPartitions

    if partitions > 1:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        wanted = [NewPartitions(f"topic-{number}", partitions) for number in range(TOPICS)]
        for done in admin.create_partitions(wanted).values():
            done.result(WAIT_S)


def measure(broker: Measured, count: int, new_partitions: int, figures: Figures) -> None:
    """Measure a broker for one turn, after a warm-up in which the JVM compiles its hot code."""
    is_secured = isinstance(broker, SecuredKafka | SecuredParley)
    if isinstance(broker, SecuredKafka | SecuredParley):
        turn = Turn(broker, figures)
        turn.create_user()
        turn.add_acls()
        address, shown, words, rights = broker.login, TOPICS // 2, LOGIN, "10,000 ACLs"
    else:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for done in admin.create_topics([NewTopic(f"topic-{n}", 1, 1) for n in range(TOPICS)]).values():
            done.result(WAIT_S)
        address, shown, words, rights = broker.bootstrap, TOPICS, [], "no authorizer"
    measure_requests(broker, address, shown, 2 * count, "", defaultdict(list), words)
    for partitions in PARTITIONS:
        grow(broker, partitions)
        label = f"{TOPICS * partitions} partitions, {rights}"
        measure_requests(broker, address, shown, count, label, figures, words)
    if not is_secured and new_partitions:
        create(broker, new_partitions, figures)


def create(broker: Measured, partitions: int, figures: Figures) -> None:
    """Create topics with many partitions, one after another. The first is a warm-up."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(4):
        cpu, began = broker.cpu_seconds(), time.perf_counter()
        for done in admin.create_topics([NewTopic(f"new-{number}", partitions, 1)]).values():
            done.result(WAIT_S)
        elapsed = time.perf_counter() - began
        time.sleep(1.0)  # Kafka creates the logs after its response
        if number:
            figures[f"create a topic of {partitions} partitions: ms", broker.name].append(1000 * elapsed)
            figures["and broker CPU ms within a second", broker.name].append(1000 * (broker.cpu_seconds() - cpu))
        broker.delete_topic(f"new-{number}")


def main() -> None:
    parser = turns_parser("bench.metadata", __doc__, rounds=2)
    parser.add_argument("--count", type=int, default=8000, help="requests about one topic; a quarter about all topics")
    parser.add_argument("--partitions", type=int, default=1000, help="of the topics to create; 0 creates none")
    parser.add_argument("--only", choices=("plain", "secured"), help="measure only without, or with an authorizer")
    given = parser.parse_args()
    kinds: list[type[Measured]] = []
    for name, ours, theirs in (("plain", Parley, Kafka), ("secured", SecuredParley, SecuredKafka)):
        if given.only in (None, name):
            kinds += [ours] if given.alone or not KAFKA.exists() else [theirs, ours]
    report(
        in_turns(kinds, given.rounds, lambda broker, figures: measure(broker, given.count, given.partitions, figures))
    )


if __name__ == "__main__":
    main()
