"""``python -m bench.cores``: produce and consume with one broker and with two, on the cores that the client shares.

Two brokers are ``parley start --brokers 2`` with one bootstrap port; each leads half of the partitions. The client uses
the same cores: at full speed it takes up to one of them, so that on two cores two brokers share about one. Processor
time per GB shows what the second broker costs. The client's contains its start, 0.1 s in each measurement.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.__main__ import load, warm_up
from bench.clusters import TICKS, Parley
from bench.figures import Figures, report
from bench.turns import in_turns, turns_parser

PARTITIONS = 6
READY_S = 60.0


class Brokers(Parley):
    """One broker, or several on this machine."""

    label = "1 broker"
    brokers = 1


class TwoBrokers(Brokers):
    """Two brokers on this machine, and the command that starts them."""

    label = "2 brokers"
    brokers = 2

    def command(self) -> list[str]:
        words = ["start", "--brokers", str(self.brokers), "--bootstrap-port", str(self.port)]
        for setting in ("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={self.folder / 'data'}", "metrics.listener="):
            words += ["--override", setting]
        return [sys.executable, "-m", "parley", *words]

    def start(self) -> float:
        """Start the brokers, and wait until both are members of the cluster. Returns the seconds until the first one
        served requests. Raises SystemExit if they are not members after ``READY_S``."""
        seconds = super().start()
        admin, deadline = AdminClient({"bootstrap.servers": self.bootstrap}), time.monotonic() + READY_S
        while len(admin.list_topics(timeout=READY_S).brokers) < self.brokers:
            if time.monotonic() > deadline:
                raise SystemExit(f"after {READY_S:g} s fewer than {self.brokers} brokers run")
        return seconds

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes so far, user and system."""
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        stats = [Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split() for each in (pid, *children)]
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) / TICKS


def measure(broker: Brokers, sizes: list[int], total: int, figures: Figures) -> None:
    """Measure the brokers for one turn, and add the results to ``figures``."""
    warm_up(broker, total)
    for size in sizes:
        topic = f"bench-{size}"
        broker.create_topic(topic, PARTITIONS)
        for work in ("produce", "consume"):
            before = _client_seconds()
            result, cpu = load(broker, work, topic, size, PARTITIONS, total)
            label = f"{work} {size} B, {broker.label}"
            figures[f"{label}: records/s", broker.name].append(result["records"] / result["seconds"])
            figures[f"{label}: broker CPU s/GB", broker.name].append(cpu)
            client = (_client_seconds() - before) / (result["bytes"] / 1e9)
            figures[f"{label}: client CPU s/GB", broker.name].append(client)
        broker.delete_topic(topic)


def _client_seconds() -> float:
    """Return the CPU time of the clients that have ended. The brokers still run, so they do not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = turns_parser("bench.cores", __doc__, rounds=2)
    parser.add_argument("--mb", type=int, default=200, help="megabytes of each measurement")
    parser.add_argument("--sizes", default="100,1024", help="record sizes in bytes")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    kinds: list[type[Brokers]] = [Brokers, TwoBrokers]
    report(
        in_turns(kinds, given.rounds, lambda brokers, figures: measure(brokers, sizes, given.mb * 1_000_000, figures))
    )


if __name__ == "__main__":
    main()
