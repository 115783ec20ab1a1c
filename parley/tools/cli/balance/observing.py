"""Collect the facts about a cluster for the planner, using only Kafka's protocol.

Sizes come from DescribeLogDirs. For rates, the end offsets of all partitions are read twice, and the records between
them are assumed to be of the partition's average record size. Followers fetch what the leader receives. The protocol
does not report what consumers fetch, so they count as one reader: a leader sends what it receives once per replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from parley.protocol.client import Client
from parley.protocol.host_label import host_label_of
from parley.protocol.topic_partition import TopicPartition
from parley.tools.balance.cluster import Broker, Cluster, Partition
from parley.tools.cli.cluster_client import check
from parley.tools.cli.log_dirs import directories
from parley.tools.cli.reassign import requests
from parley.tools.cli.topic_offsets import EARLIEST, LATEST, list_offsets_of

Sizes = dict[TopicPartition, dict[int, int]]
"""The size of each replica in bytes, by broker."""


async def observe(client: Client, interval_s: float) -> Cluster:
    """Return the state of the cluster. Rates are measured over ``interval_s`` seconds. If it is 0, all rates are 0.

    Raises ``CommandError`` or KafkaError if a broker does not respond.
    """
    described = await requests.brokers(client)
    metadata = (await client.metadata()).topics
    moving = await requests.ongoing(client)
    brokers, sizes = await _disks(client, described)
    leaders = {(topic.name or "", one.partition_index): one.leader_id for topic in metadata for one in topic.partitions}
    running = {broker.broker_id for broker in described}
    led = {where: leader for where, leader in leaders.items() if leader in running}
    rates = await _rates(client, led, sizes, interval_s) if interval_s else {}
    partitions = []
    for topic in metadata:
        check(topic.error_code, doing=f"Topic {topic.name}")
        for one in topic.partitions:
            where = (topic.name or "", one.partition_index)
            replicas = moving[where].target if where in moving else tuple(one.replica_nodes)
            bytes_in = rates.get(where, 0)
            size = max(sizes.get(where, {}).values(), default=0)
            partitions.append(
                Partition(*where, replicas, one.leader_id, size, bytes_in, bytes_in * len(replicas), where in moving)
            )
    return Cluster(tuple(brokers), tuple(sorted(partitions, key=lambda one: (one.topic, one.index))))


async def _disks(client: Client, described: Sequence[Any]) -> tuple[list[Broker], Sizes]:
    """Return the brokers with the size and free space of their disks, and the sizes of all replicas."""
    brokers = []
    sizes: Sizes = {}
    _, directories_of = await directories(client, [one.broker_id for one in described], ())
    for one in described:
        usable = [directory for directory in directories_of[one.broker_id] if not directory.error_code]
        # Directories on the same volume report the same.
        volumes = {(directory.total_bytes, directory.usable_bytes) for directory in usable}
        known = bool(volumes) and all(total > 0 for total, _ in volumes)
        disk, free = (sum(each) for each in zip(*volumes, strict=True)) if known else (None, None)
        brokers.append(Broker(one.broker_id, one.rack or None, disk, free, host_label_of(one)))
        for directory in usable:
            for topic in directory.topics:
                for found in topic.partitions:
                    if not found.is_future_key:
                        held = sizes.setdefault((topic.name, found.partition_index), {})
                        held[one.broker_id] = found.partition_size
    return brokers, sizes


async def _rates(
    client: Client, leaders: Mapping[TopicPartition, int], sizes: Sizes, interval_s: float
) -> dict[TopicPartition, int]:
    """Return the bytes per second produced to each partition."""
    loop = asyncio.get_running_loop()
    led: dict[int, list[TopicPartition]] = {}
    for where, leader in leaders.items():
        led.setdefault(leader, []).append(where)
    earliest = await _offsets(client, led, EARLIEST)
    began, first = loop.time(), await _offsets(client, led, LATEST)
    await asyncio.sleep(interval_s)
    last = await _offsets(client, led, LATEST)
    took = loop.time() - began
    found = {}
    for where in earliest.keys() & first.keys() & last.keys():
        held = last[where] - earliest[where]
        size = sizes.get(where, {}).get(leaders[where], 0)
        if held > 0:
            found[where] = max(0, round((last[where] - first[where]) * size / held / took))
    return found


async def _offsets(
    client: Client, led: Mapping[int, Sequence[TopicPartition]], timestamp: int
) -> dict[TopicPartition, int]:
    """Return each partition's offset at ``timestamp`` (``EARLIEST`` or ``LATEST``). Omits partitions whose leader
    returned an error, for example because it is no longer the leader."""
    found = await list_offsets_of(client, led, timestamp)
    return {where: each.offset for where, each in found.items() if not each.error}
