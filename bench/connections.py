"""``python -m bench.connections``: one record per request on 1, 50 and 1,000 connections, compared with other brokers.

Each connection sends its next request when it has the response, with ``acks=all``, so that at most as many requests are
in progress as there are connections. ``--idle`` measures something else: the memory and the processor time that idle
connections take.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.clients import client, outcome, run_client, wait_until_begun
from bench.clusters import Measured
from bench.figures import Figures, report
from bench.kinds import single_brokers
from bench.turns import in_turns, turns_parser

TOPIC = "one-record"
WARM_UP_S = 4.0
QUIET_S = 3.0
PROBE_S = 3.0


def measure(broker: Measured, counts: Sequence[int], seconds: float, figures: Figures) -> None:
    """Measure a broker for one turn, and add the results to ``figures``."""
    broker.create_topic(TOPIC, 1)
    for count in counts:
        words = (broker.bootstrap, TOPIC, "--connections", count, "--seconds", seconds, "--warm-up", WARM_UP_S)
        with client("bench.small_load", "produce", *words) as running:
            wait_until_begun(running)
            time.sleep(WARM_UP_S)
            cpu, began = broker.cpu_seconds(), time.perf_counter()
            time.sleep(seconds * 0.8)  # the client may end a little earlier
            cpu = (broker.cpu_seconds() - cpu) / (time.perf_counter() - began)
            found = outcome(running)
        label = f"{count:,} connection{'s' if count > 1 else ''}"
        rate = found["requests"] / found["seconds"]
        figures[f"{label}: requests/s", broker.name].append(rate)
        figures[f"{label}: broker CPU us per request", broker.name].append(1e6 * cpu / rate)
        for percent in ("p50", "p99"):
            figures[f"{label}: {percent} ms", broker.name].append(found[percent])


def measure_idle(broker: Measured, count: int, seconds: float, figures: Figures) -> None:
    """Measure idle connections, and the requests of another client meanwhile."""
    broker.create_topic(TOPIC, 1)
    probe = ("bench.small_load", "produce", broker.bootstrap, TOPIC, "--seconds", PROBE_S, "--warm-up", PROBE_S)
    alone = run_client(*probe)
    memory, cpu = broker.resident_mb(), broker.cpu_seconds()
    with client("bench.small_load", "idle", broker.bootstrap, TOPIC, "--connections", count) as running:
        wait_until_begun(running)
        opened = broker.cpu_seconds() - cpu
        time.sleep(QUIET_S)
        memory = broker.resident_mb() - memory
        cpu = broker.cpu_seconds()
        time.sleep(seconds)
        cpu = (broker.cpu_seconds() - cpu) / seconds
        beside = run_client(*probe)
        outcome(running, "\n")
    label = f"{count:,} idle connections"
    figures[f"{label}: KB of memory each", broker.name].append(1000 * memory / count)
    figures[f"{label}: broker CPU us to open each, with one request", broker.name].append(1e6 * opened / count)
    figures[f"{label}: broker CPU ms per second", broker.name].append(1000 * cpu)
    for what, found in (("alone", alone), ("beside them", beside)):
        for percent in ("p50", "p99"):
            figures[f"one client {what}: {percent} ms", broker.name].append(found[percent])


def main() -> None:
    parser = turns_parser("bench.connections", __doc__, rounds=2)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 50, 1000], help="numbers of connections")
    parser.add_argument("--idle", type=int, default=0, help="measure this many idle connections instead")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each is measured")
    given = parser.parse_args()

    def measure_turn(broker: Measured, figures: Figures) -> None:
        if given.idle:
            measure_idle(broker, given.idle, given.seconds, figures)
        else:
            measure(broker, given.counts, given.seconds, figures)

    report(in_turns(single_brokers(given.alone, peers=True), given.rounds, measure_turn))


if __name__ == "__main__":
    main()
