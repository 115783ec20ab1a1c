"""``python -m bench.share_groups``: a share group reads a topic, on Parley and on Apache Kafka in turns.

The client is Kafka's ``ShareConsumerPerformance``. Each round uses another group, which begins at the start of the
topic and acknowledges every record. ``--cluster`` measures three brokers of each, with replication factor 3. Quote only
the ratios: the figures depend on other load on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from bench.cluster import KafkaCluster
from bench.clusters import KAFKA, Kafka, Measured, Parley
from bench.figures import Figures, Found, report
from bench.replication import ReplicatedCluster
from parley.protocol.client import Client
from parley.protocol.messages.configs import IncrementalAlterConfigsRequest

TOPIC = "shared"
PARTITIONS = 6
GROUP = 32
"""The resource type of groups in configuration requests."""
CLIENT = "org.apache.kafka.tools.ShareConsumerPerformance"
WARM_UP = 0.2
"""The fraction of the records that a group reads before the first round."""
SINGLE = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


class SharingKafka(Kafka):
    """Apache Kafka as a single broker with share groups."""

    def settings(self) -> dict[str, str]:
        return {**super().settings(), **SINGLE}


async def begin_at_the_start(bootstrap: str, group: str) -> None:
    """Make a group start at the first record of each partition. Raises SystemExit if the broker rejects the setting."""
    kind = IncrementalAlterConfigsRequest
    entry = kind.AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = kind.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=[entry])
    async with Client(bootstrap) as client:
        response = await client.send(kind(resources=[resource]))
        if response.responses[0].error_code:
            raise SystemExit(f"{group}: {response.responses[0].error_message}")


def fill(broker: Measured | ReplicatedCluster, size: int, records: int) -> None:
    """Create the topic and write the records."""
    broker.create_topic(TOPIC, PARTITIONS)
    words = ["produce", broker.bootstrap, TOPIC, "--partitions", str(PARTITIONS)]
    words += ["--size", str(size), "--bytes", str(size * records)]
    subprocess.run([sys.executable, "-m", "bench.load", *words], check=True, capture_output=True)


def consume(broker: Measured | ReplicatedCluster, group: str, records: int, threads: int) -> tuple[float, float, float]:
    """Read the records with a group. Returns MB, MB per second, and the broker's CPU seconds. Raises SystemExit if the
    client fails."""
    asyncio.run(begin_at_the_start(broker.bootstrap, group))
    before = broker.cpu_seconds()
    words = ["--bootstrap-server", broker.bootstrap, "--topic", TOPIC, "--group", group, "--num-records", str(records)]
    words += ["--threads", str(threads), "--timeout", "60000", "--hide-header"]
    java = ["java", "-Xmx512m", "-cp", f"{KAFKA / 'libs'}/*", CLIENT, *words]
    done = subprocess.run(java, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{broker.name}: {done.stdout}{done.stderr}")
    line = [each for each in done.stdout.splitlines() if each.count(",") >= 6][-1].split(",")
    megabytes, per_second = (float(each) for each in line[2:4])
    return megabytes, per_second, broker.cpu_seconds() - before


def run(rounds: int, sizes: list[int], total: int, threads: int, *, clusters: bool) -> Figures:
    """Measure both brokers, or both clusters, in turn. Returns the figures."""
    kinds: list[type[Measured] | type[ReplicatedCluster]]
    kinds = [ReplicatedCluster, KafkaCluster] if clusters else [Parley, SharingKafka]
    figures: Figures = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            brokers = [kind(Path(folder) / f"{kind.__name__}-{size}") for kind in kinds]
            records = total // size
            for broker in brokers:
                broker.start()
                fill(broker, size, records)
                consume(broker, "warm-up", int(records * WARM_UP), threads)
            for number in range(rounds):
                for broker in brokers:
                    megabytes, per_second, cpu = consume(broker, f"round-{number}", records, threads)
                    figures[f"consume {size} B: MB/s", broker.name].append(per_second)
                    figures[f"consume {size} B: broker CPU s/GB", broker.name].append(cpu / megabytes * 1000)
                    print(json.dumps({"broker": broker.name, "size": size, "MB/s": per_second, "CPU": cpu}), flush=True)
            for broker in brokers:
                broker.stop()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024])
    parser.add_argument("--total", type=int, default=200_000_000, help="bytes in the topic")
    parser.add_argument("--threads", type=int, default=1, help="share consumers in the client")
    parser.add_argument("--cluster", action="store_true", help="three brokers with replication factor 3")
    options = parser.parse_args()
    figures = run(options.rounds, options.sizes, options.total, options.threads, clusters=options.cluster)
    report(Found(figures))


if __name__ == "__main__":
    main()
