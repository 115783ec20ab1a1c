"""``python -m bench.catch_up``: reading a log five times the size of the memory, beside a live tail.

The broker and the page cache of its files get ``--memory`` megabytes. The log that it has written is five times as
large. A client that reads it from the beginning must get it from the disk. Meanwhile another client writes one record
per request, 500 times per second, to another topic, and reads the records back. The latency of these records is
measured without and with the reader of the log. Apache Kafka has a heap of 256 MB here, so that some memory is left for
the page cache.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.__main__ import load
from bench.clients import client, outcome, run_client, wait_until_begun
from bench.clusters import KAFKA, Kafka, Measured, Parley
from bench.figures import Figures, report
from bench.memory_limit import limited_to
from bench.turns import in_turns, turns_parser

COLD, LIVE = "cold", "live"
SIZE, RATE = 1024, 500
WARM_UP_S = 3.0
TIMES_THE_MEMORY = 5
HEAP = {"-Xms1G": "-Xms256M", "-Xmx1G": "-Xmx256M"}


class Limited(Measured):
    """A broker whose memory is limited."""

    def __init__(self, folder: Path, memory_mb: int) -> None:
        super().__init__(folder)
        self._stack = ExitStack()
        self._memory_mb = memory_mb

    def launch(self) -> None:
        processes = self._stack.enter_context(limited_to(self._memory_mb))
        super().launch()
        assert self.process is not None
        processes.write_text(str(self.process.pid))

    def stop(self) -> None:
        super().stop()
        self._stack.close()


class LimitedParley(Limited, Parley):
    name = Parley.name


class LimitedKafka(Limited, Kafka):
    name = Kafka.name

    def command(self) -> list[str]:
        return [HEAP.get(word, word) for word in super().command()]


def measure(broker: Measured, total: int, seconds: float, figures: Figures) -> None:
    """Measure a broker for one turn, and add the results to ``figures``."""
    for topic in (COLD, LIVE):
        broker.create_topic(topic, 1)
    load(broker, "produce", COLD, SIZE, 1, total)
    tail = ("bench.small_load", "paced", broker.bootstrap, LIVE, "--rate", RATE, "--warm-up", WARM_UP_S)
    alone = run_client(*tail, "--seconds", seconds)
    before = broker.cpu_seconds()
    words = (broker.bootstrap, COLD, "--records", total // SIZE)
    with client("bench.small_load", "read", *words) as reader:
        wait_until_begun(reader)
        beside = run_client(*tail, "--seconds", seconds)
        found = outcome(reader)
    cpu = broker.cpu_seconds() - before
    figures["catching up: MB/s", broker.name].append(found["bytes"] / 1e6 / found["seconds"])
    figures["catching up: broker CPU s/GB, the tail included", broker.name].append(cpu / (found["bytes"] / 1e9))
    for what, times in (("alone", alone), ("beside it", beside)):
        for percent in ("p50", "p99"):
            figures[f"live tail {what}, end to end {percent} ms", broker.name].append(times[f"end to end {percent}"])


def main() -> None:
    parser = turns_parser("bench.catch_up", __doc__, rounds=1)
    parser.add_argument("--memory", type=int, default=1024, help="megabytes of the broker and its page cache")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long the live tail is measured")
    given = parser.parse_args()
    kinds: list[Callable[[Path], Measured]] = [lambda folder: LimitedParley(folder, given.memory)]
    if not given.alone and KAFKA.exists():
        kinds.insert(0, lambda folder: LimitedKafka(folder, given.memory))
    total = TIMES_THE_MEMORY * given.memory << 20
    report(in_turns(kinds, given.rounds, lambda broker, figures: measure(broker, total, given.seconds, figures)))


if __name__ == "__main__":
    main()
