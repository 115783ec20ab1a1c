"""``python -m bench``: CPU time per GB, throughput, start time and memory of a broker, compared with Apache Kafka.

The two brokers take turns (A B A B ...), so that other load on the machine affects both. The output is medians and the
ratio Parley / Kafka. The broker's CPU time is the most reliable figure. Records per second also depend on the client,
which shares the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.clusters import KAFKA, Kafka, Measured, Parley, turns

if TYPE_CHECKING:
    from bench.replication import ReplicatedCluster

Figures = dict[tuple[str, str], list[float]]
IDLE_SECONDS = 3.0
WARM_UP_BYTES = 200_000_000


def measure(broker: Measured, sizes: list[int], partitions: list[int], total: int, figures: Figures) -> None:
    """Measure one turn of one broker."""
    figures["start to first metadata answer, s", broker.name].append(broker.start())
    time.sleep(IDLE_SECONDS)
    figures["resident memory idle, MB", broker.name].append(broker.resident_mb())
    try:
        _warm_up(broker)
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
    finally:
        broker.stop()


def _warm_up(broker: Measured) -> None:
    """Run a load without measuring it, so that the JVM has compiled its hot code before the measurement."""
    broker.create_topic("warm-up", 1)
    for work in ("produce", "consume"):
        load(broker, work, "warm-up", 100, 1, WARM_UP_BYTES)
    broker.delete_topic("warm-up")


def load(
    broker: Measured | ReplicatedCluster,
    work: str,
    topic: str,
    size: int,
    partitions: int,
    total: int,
    settings: Sequence[str] = (),
) -> tuple[Any, float]:
    """Produce or consume ``total`` bytes. Returns the result of ``bench.load``, and the brokers' CPU seconds per GB.

    ``settings`` are the client's, each as ``key=value``.
    """
    before = broker.cpu_seconds()
    command = [sys.executable, "-m", "bench.load", work, broker.bootstrap, topic]
    command += ["--partitions", str(partitions), "--size", str(size), "--bytes", str(total)]
    command += [word for setting in settings for word in ("--set", setting)]
    result: Any = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result, (broker.cpu_seconds() - before) / (result["bytes"] / 1e9)


def table(figures: Figures) -> str:
    """Format the medians and ratios as text."""
    rows: dict[str, dict[str, float]] = defaultdict(dict)
    for (label, name), values in figures.items():
        rows[label][name] = statistics.median(values)
    lines = [f"{'':<48} {Parley.name:>12} {Kafka.name:>20} {'ratio':>7}"]
    for label, by_name in rows.items():
        ours, theirs = by_name.get(Parley.name), by_name.get(Kafka.name)
        ratio = f"{ours / theirs:.2f}" if ours is not None and theirs else ""
        cells = [_number(value) for value in (ours, theirs)]
        lines.append(f"{label:<48} {cells[0]:>12} {cells[1]:>20} {ratio:>7}")
    return "\n".join(lines)


def spread(figures: Figures, prefix: str = "") -> str:
    """Format all measured values, because a median of few values hides the spread."""
    lines = ["one by one"]
    for (label, name), values in figures.items():
        if label.startswith(prefix):
            lines.append(f"  {label}: {name}: {', '.join(map(_number, values))}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="number of turns of each broker")
    parser.add_argument("--mb", type=int, default=400, help="megabytes of each measurement")
    parser.add_argument("--sizes", default="100,1024", help="record sizes in bytes")
    parser.add_argument("--partitions", default="1,6", help="numbers of partitions")
    parser.add_argument("--alone", action="store_true", help="measure Parley only")
    parser.add_argument("--cluster", action="store_true", help="three brokers with replication factor 3, and failover")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    partitions = [int(count) for count in given.partitions.split(",")]
    if given.cluster:
        from bench import cluster

        found = cluster.run(given.rounds, sizes, given.mb * 1_000_000, alone=given.alone or not KAFKA.exists())
        print(table(found))
        print(spread(found, "pause"))
        return
    kinds: list[type[Measured]] = [Parley] if given.alone or not KAFKA.exists() else [Kafka, Parley]
    figures: Figures = defaultdict(list)
    for kind, folder in turns(kinds, given.rounds):
        broker = kind(folder)
        total = given.mb * 1_000_000
        measure(broker, sizes, partitions, total, figures)
    print(table(figures))


if __name__ == "__main__":
    main()
