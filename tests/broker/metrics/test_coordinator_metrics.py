"""The metrics of coordinators, produced by the work of a broker."""

from __future__ import annotations

from typing import Any

from parley import Broker
from parley.broker.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from parley.broker.metrics.broker_metrics import coordinator_partitions
from parley.protocol.client import Client
from tests.broker.coordinators.groups.test_coordinator import Groups


async def test_partitions_and_commits_are_counted() -> None:
    async with Broker(offsets_topic_num_partitions=2) as broker, Client(broker.bootstrap_servers) as client:
        groups, parts = Groups(broker, client), broker.server.parts
        await groups.create("t")
        await groups.find_coordinator()
        await groups.commit(5)
        await parts.groups.runtime.until_loaded(60)
        runtimes = (parts.groups.runtime, parts.transactions.runtime)
        partitions: Any = coordinator_partitions(runtimes)
        counted = {labels: numbers.partitions for labels, numbers in partitions}
        assert counted[OFFSETS_TOPIC, "active"] == 2
        assert counted[OFFSETS_TOPIC, "loading"] == counted[OFFSETS_TOPIC, "failed"] == 0
        assert counted[TRANSACTIONS_TOPIC, "active"] == 0
        metrics = parts.groups.metrics()
        assert (metrics.offsets, metrics.commits, metrics.expired, metrics.rebalances) == (1, 1, 0, 0)
        runtime = parts.groups.runtime.metrics()
        assert (runtime.appends, runtime.queued, sum(runtime.load_time.buckets)) == (1, 0, 2)
