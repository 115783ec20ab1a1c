"""``python -m bench.compaction``: the cost of compaction per million keys, compared with Apache Kafka.

Each broker has a topic in which every key is written twice, in random order and uncompressed. Then compaction is turned
on for the topic. The broker's CPU time and memory, including its worker process, are measured until its cleaner has
reached the active segment. Clients are idle during this time.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from bench.clusters import KAFKA, PAGE, TICKS, Kafka, Measured, Parley
from bench.figures import Figures, report
from bench.turns import in_turns, turns_parser

TOPIC = "keyed"
SETTINGS = {"log.cleaner.backoff.ms": "1000", "log.flush.offset.checkpoint.interval.ms": "1000"}
SEGMENT_BYTES = 50 << 20
VALUE = b"v" * 100
POLL_S = 0.02
PATIENCE_S = 600.0


class CompactingParley(Parley):
    """Parley, whose cleaner looks for work every second."""

    def command(self) -> list[str]:
        return [*super().command(), *(word for pair in SETTINGS.items() for word in ("--override", "=".join(pair)))]


class CompactingKafka(Kafka):
    """Apache Kafka, whose cleaner looks for work every second."""

    def settings(self) -> dict[str, str]:
        return {**super().settings(), **SETTINGS}


def processes(broker: Measured) -> list[int]:
    """Return the ids of the broker's process and of its children."""
    assert broker.process is not None
    pid = broker.process.pid
    children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(int(child) for found in children for child in found)]


def cpu_seconds(broker: Measured) -> float:
    """Return the CPU time of all processes of the broker so far, in seconds."""
    total = 0
    for pid in processes(broker):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def resident_mb(broker: Measured) -> float:
    """Return the resident memory of all processes of the broker, in MB."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in processes(broker)) * PAGE / 1e6


def fill(broker: Measured, keys: int) -> None:
    """Create the topic, and write every key twice."""
    config = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1", "min.cleanable.dirty.ratio": "0.01"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result()
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500000}
    )
    order = [*range(keys), *range(keys)]
    Random(1).shuffle(order)
    for number, key in enumerate(order):
        while True:
            try:
                producer.produce(TOPIC, VALUE, b"key-%09d" % key, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


def begin_compaction(broker: Measured) -> None:
    """Turn on compaction for the topic."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()


def is_compacted(data: Path) -> bool:
    """Return True if the cleaner has reached the active segment, according to its checkpoint."""
    segments = sorted((data / f"{TOPIC}-0").glob("*.log"))
    checkpoint = data / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    cleaned = {tuple(line.split()[:2]): int(line.split()[2]) for line in lines[2:]}
    return cleaned.get((TOPIC, "0"), 0) == int(segments[-1].stem) > 0


def measure(broker: Measured, keys: int, figures: Figures) -> None:
    """Measure one compaction of a topic with ``keys`` keys, and add the results to ``figures``. Raises SystemExit if it
    takes longer than ``PATIENCE_S``."""
    fill(broker, keys)
    time.sleep(3.0)
    cpu, began = cpu_seconds(broker), time.perf_counter()
    begin_compaction(broker)
    resident = 0.0
    while not is_compacted(broker.folder / "data"):
        if time.perf_counter() - began > PATIENCE_S:
            raise SystemExit(f"{broker.name} has not compacted the topic: see {broker.folder}")
        resident = max(resident, resident_mb(broker))
        time.sleep(POLL_S)
    millions = keys / 1e6
    figures["compaction: CPU s per million keys", broker.name].append((cpu_seconds(broker) - cpu) / millions)
    figures["compaction: s per million keys", broker.name].append((time.perf_counter() - began) / millions)
    figures["compaction: resident memory, MB", broker.name].append(resident)


def main() -> None:
    parser = turns_parser("bench.compaction", __doc__, rounds=3)
    parser.add_argument("--keys", type=int, default=1_000_000, help="number of keys; each is written twice")
    given = parser.parse_args()
    kinds: list[type[Measured]] = [CompactingParley]
    if not given.alone and KAFKA.exists():
        kinds.insert(0, CompactingKafka)
    report(in_turns(kinds, given.rounds, lambda broker, figures: measure(broker, given.keys, figures)))


if __name__ == "__main__":
    main()
