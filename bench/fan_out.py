"""``python -m bench.fan_out``: one writer, and 50 readers of the same records as they arrive.

The readers are connections of one process, which looks only at the headers of batches. The broker's processor time is
divided by the GB that the readers receive.
"""

from __future__ import annotations

from bench.__main__ import load, warm_up
from bench.clients import client, outcome, wait_until_begun
from bench.clusters import Measured
from bench.figures import Figures, report
from bench.kinds import single_brokers
from bench.turns import in_turns, turns_parser

TOPIC, SIZE = "shared", 1024


def measure(broker: Measured, readers: int, total: int, figures: Figures) -> None:
    """Measure a broker for one turn, and add the results to ``figures``."""
    warm_up(broker, total)
    broker.create_topic(TOPIC, 1)
    words = (broker.bootstrap, TOPIC, "--connections", readers, "--records", total // SIZE)
    with client("bench.small_load", "read", *words) as running:
        wait_until_begun(running)
        before = broker.cpu_seconds()
        written, _ = load(broker, "produce", TOPIC, SIZE, 1, total)
        found = outcome(running)
        cpu = broker.cpu_seconds() - before
    label = f"{readers} readers"
    figures[f"{label}: MB/s received", broker.name].append(found["bytes"] / 1e6 / found["seconds"])
    figures[f"{label}: MB/s written", broker.name].append(written["bytes"] / 1e6 / written["seconds"])
    figures[f"{label}: broker CPU s per GB received", broker.name].append(cpu / (found["bytes"] / 1e9))


def main() -> None:
    parser = turns_parser("bench.fan_out", __doc__, rounds=3)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--mb", type=int, default=100, help="megabytes that are written; each reader reads all")
    given = parser.parse_args()
    kinds, total = single_brokers(given.alone, peers=True), given.mb * 1_000_000
    report(in_turns(kinds, given.rounds, lambda broker, figures: measure(broker, given.readers, total, figures)))


if __name__ == "__main__":
    main()
