"""``python -m bench``: CPU time per GB, throughput, start time and memory of a broker, compared with Apache Kafka.

The two brokers take turns (A B A B ...), so that other load on the machine affects both. The output is medians and the
ratio Parley / Kafka. The broker's CPU time is the most reliable figure. Records per second also depend on the client,
which shares the machine's cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.clusters import Measured
from bench.figures import Figures, report
from bench.kinds import single_brokers
from bench.turns import in_turns, turns_parser

if TYPE_CHECKING:
    from bench.replication import ReplicatedCluster

IDLE_SECONDS = 3.0
WARM_UP_BYTES = 200_000_000


def measure(broker: Measured, sizes: list[int], partitions: list[int], total: int, figures: Figures) -> None:
    """Measure a broker for one turn, and add the results to ``figures``."""
    figures["start to first metadata answer, s", broker.name].append(broker.start())
    time.sleep(IDLE_SECONDS)
    figures["resident memory idle, MB", broker.name].append(broker.resident_mb())
    warm_up(broker, total)
    for size in sizes:
        for count in partitions:
            topic = f"bench-{size}-{count}"
            broker.create_topic(topic, count)
            for work in ("produce", "consume"):
                result, cpu = load(broker, work, topic, size, count, total)
                label = f"{work} {size} B, {count} partition{'s' if count > 1 else ''}"
                figures[f"{label}: broker CPU s/GB", broker.name].append(cpu)
                figures[f"{label}: records/s", broker.name].append(result["records"] / result["seconds"])
            broker.delete_topic(topic)
    figures["resident memory after load, MB", broker.name].append(broker.resident_mb())


def warm_up(broker: Measured, total: int) -> None:
    """Run a load without measuring it, so that the JVM has compiled its hot code before the measurement.

    If ``total`` is a few bytes, which only shows that everything works, the warm-up is small, too.
    """
    broker.create_topic("warm-up", 1)
    for work in ("produce", "consume"):
        load(broker, work, "warm-up", 100, 1, min(WARM_UP_BYTES, total))
    broker.delete_topic("warm-up")


def load(
    broker: Measured | ReplicatedCluster,
    work: str,
    topic: str,
    size: int,
    partitions: int,
    total: int,
    settings: Sequence[str] = (),
    *,
    compressible: bool = False,
) -> tuple[Any, float]:
    """Produce or consume ``total`` bytes. Returns the result of ``bench.load``, and the brokers' CPU seconds per GB.

    ``settings`` are the client's, each as ``key=value``.
    """
    before = broker.cpu_seconds()
    command = [sys.executable, "-m", "bench.load", work, broker.bootstrap, topic]
    command += ["--partitions", str(partitions), "--size", str(size), "--bytes", str(total)]
    command += [word for setting in settings for word in ("--set", setting)]
    command += ["--compressible"] if compressible else []
    result: Any = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result, (broker.cpu_seconds() - before) / (result["bytes"] / 1e9)


def main() -> None:
    parser = turns_parser("bench", __doc__, rounds=3)
    parser.add_argument("--mb", type=int, default=400, help="megabytes of each measurement")
    parser.add_argument("--sizes", default="100,1024", help="record sizes in bytes")
    parser.add_argument("--partitions", default="1,6", help="numbers of partitions")
    parser.add_argument("--cluster", action="store_true", help="three brokers with replication factor 3, and failover")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    partitions = [int(count) for count in given.partitions.split(",")]
    total = given.mb * 1_000_000
    if given.cluster:
        from bench import cluster

        report(cluster.run(given.rounds, sizes, total, alone=given.alone), "pause")
        return
    kinds = single_brokers(given.alone, peers=True)
    report(
        in_turns(
            kinds,
            given.rounds,
            lambda broker, figures: measure(broker, sizes, partitions, total, figures),
            starts=False,
        )
    )


if __name__ == "__main__":
    main()
