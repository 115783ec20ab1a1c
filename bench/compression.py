"""``python -m bench.compression``: the cost of compressed records, and of acks, compared with other brokers.

The records are 200 B of JSON, which compress to about a fifth, in six partitions. A GB is a GB of uncompressed records.
The client compresses them, and the broker stores the batches as they are. ``acks=all`` on one broker shows what waiting
for replicas costs if there are none.
"""

from __future__ import annotations

from bench.__main__ import load, warm_up
from bench.clusters import Measured
from bench.figures import Figures, report
from bench.kinds import single_brokers
from bench.turns import in_turns, turns_parser

CODECS = ("none", "lz4", "zstd")
ACKS = ("1", "all")
SIZE, PARTITIONS = 200, 6


def measure(broker: Measured, total: int, figures: Figures) -> None:
    """Measure a broker for one turn, and add the results to ``figures``."""
    warm_up(broker, total)
    for codec in CODECS:
        for acks in ACKS:
            topic, settings = f"{codec}-{acks}", [f"compression.type={codec}", f"acks={acks}"]
            broker.create_topic(topic, PARTITIONS)
            for work in ("produce", "consume"):
                if work == "consume" and acks != ACKS[-1]:
                    continue  # the records read are the same for every ``acks``
                used = settings if work == "produce" else []
                result, cpu = load(broker, work, topic, SIZE, PARTITIONS, total, used, compressible=work == "produce")
                label = f"{work} {codec}" + (f", acks={acks}" if work == "produce" else "")
                figures[f"{label}: broker CPU s/GB", broker.name].append(cpu)
                figures[f"{label}: records/s", broker.name].append(result["records"] / result["seconds"])
            broker.delete_topic(topic)


def main() -> None:
    parser = turns_parser("bench.compression", __doc__, rounds=2)
    parser.add_argument("--mb", type=int, default=200, help="megabytes of each measurement")
    given = parser.parse_args()
    kinds, total = single_brokers(given.alone, peers=True), given.mb * 1_000_000
    report(in_turns(kinds, given.rounds, lambda broker, figures: measure(broker, total, figures)))


if __name__ == "__main__":
    main()
