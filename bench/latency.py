"""``python -m bench.latency``: how long a record takes, at 1,000 records per second and at half of the peak.

Each record is a separate request, with ``acks=all``. Its latency counts from the time at which it was due, so that a
stall of the broker adds to the latency of all requests that wait. At 1,000 per second, a reader that waits for records
measures the end-to-end latency. The peak is what 50 connections reach when each sends its next request after the
response.
"""

from __future__ import annotations

from bench.clients import run_client
from bench.clusters import Measured
from bench.figures import Figures, report
from bench.kinds import single_brokers
from bench.turns import in_turns, turns_parser

RATE = 1000
CONNECTIONS = 50
PEAK_S = 5.0
WARM_UP_S = 4.0
PERCENTILES = ("p50", "p99", "p99.9")


def measure(broker: Measured, seconds: float, figures: Figures) -> None:
    """Measure a broker for one turn, and add the results to ``figures``."""
    for topic in ("steady", "peak", "half"):
        broker.create_topic(topic, 1)
    common = ("--warm-up", WARM_UP_S)
    where = ("bench.small_load", "paced", broker.bootstrap)
    steady = run_client(*where, "steady", "--rate", RATE, "--seconds", seconds, *common)
    for percent in PERCENTILES:
        figures[f"{RATE:,}/s, acknowledged, {percent} ms", broker.name].append(steady[percent])
    for percent in PERCENTILES:
        figures[f"{RATE:,}/s, end to end, {percent} ms", broker.name].append(steady[f"end to end {percent}"])
    many = ("--connections", CONNECTIONS)
    peak = run_client("bench.small_load", "produce", broker.bootstrap, "peak", *many, "--seconds", PEAK_S, *common)
    rate = peak["requests"] / peak["seconds"] / 2
    figures["half of the peak, requests/s", broker.name].append(rate)
    half = run_client(*where, "half", "--rate", rate, "--seconds", seconds, *many, *common)
    for percent in PERCENTILES:
        figures[f"half of the peak, acknowledged, {percent} ms", broker.name].append(half[percent])


def main() -> None:
    parser = turns_parser("bench.latency", __doc__, rounds=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each rate is measured")
    given = parser.parse_args()
    kinds = single_brokers(given.alone, peers=True)
    report(in_turns(kinds, given.rounds, lambda broker, figures: measure(broker, given.seconds, figures)))


if __name__ == "__main__":
    main()
