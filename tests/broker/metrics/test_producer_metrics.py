"""The metrics of producers and their transactions."""

from __future__ import annotations

from pathlib import Path

from parley.broker.config import BrokerConfig
from parley.broker.metrics.broker_metrics import LATE_MS, producer_metrics
from tests.broker.api.bench import BROKER, NOW_MS, OTHER, Bench


async def test_producers_and_transactions_of_led_partitions_are_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("a")
    await bench.create("b")
    await bench.create("followed", replicas=(BROKER, OTHER))
    for topic in ("a", "b", "followed"):
        bench.write_in_transaction(topic, 1)
        bench.write_in_transaction(topic, 2)
    bench.end_transaction("b", 1)
    bench.alter("followed", leader=OTHER)
    config = BrokerConfig.from_properties({"transaction.max.timeout.ms": "1000"})
    for age_ms, late in ((0, 0), (1000 + LATE_MS, 0), (1001 + LATE_MS, 2)):
        found = producer_metrics(bench.partitions, config, NOW_MS + age_ms)
        assert (found.producers, found.open_transactions, found.late_partitions) == (4, 3, late)
    bench.end_transaction("b", 2)
    assert producer_metrics(bench.partitions, config, NOW_MS + 1001 + LATE_MS).late_partitions == 1
    await bench.tasks.close()
