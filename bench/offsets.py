"""``python -m bench.offsets``: how soon committed offsets are served again after ``kill -9`` of their coordinator.

There are three brokers, and the replication factor is 3. All offsets are in one partition of ``__consumer_offsets``, so
that one broker coordinates all groups. After it is killed, a client requests the offsets of one group from both other
brokers every few milliseconds. The time has two parts: until the cluster has detected the failure and another broker
coordinates the groups, and until that broker has loaded the offsets. Then all offsets are fetched and compared with
what was committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

from bench.cluster import clusters
from bench.figures import Figures, report
from bench.replication import ReplicatedCluster
from bench.turns import in_turns, turns_parser
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

TOPIC = "consumed"
PARTITIONS = 100
"""The number of partitions of the topic. Each group commits an offset for each partition."""
SETTINGS = {"offsets.topic.num.partitions": "1"}
COMMIT_VERSION = 7
FETCH_VERSION = 8
IN_FLIGHT = 16
GROUPS_PER_FETCH = 100
POLL_S = 0.005
SETTLE_S = 3.0
PATIENCE_S = 300.0


def group_name(number: int) -> str:
    return f"group-{number:06d}"


def offset_of(group: int, partition: int) -> int:
    """Return the offset to commit, which differs for each group and partition."""
    return group * PARTITIONS + partition


def commit_request(group: int) -> OffsetCommitRequest:
    """Return a request that commits the offsets of all partitions, without membership in the group."""
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset_of(group, index), committed_metadata=""
        )
        for index in range(PARTITIONS)
    ]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)
    return OffsetCommitRequest(group_id=group_name(group), topics=[topic])


def fetch_request(groups: range) -> OffsetFetchRequest:
    """Return a request for all offsets of some groups."""
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_name(number), topics=None) for number in groups
        ]
    )


async def coordinator_of(client: Client, group: int) -> int:
    """Return the coordinator of a group, waiting until the cluster has one. Raises KafkaError if there is none after
    ``PATIENCE_S``."""
    began = time.perf_counter()
    while True:
        try:
            return await client.coordinator(group_name(group))
        except KafkaError:
            if time.perf_counter() - began > PATIENCE_S:
                raise
        await asyncio.sleep(0.1)


_UNSETTLED = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


async def commit(client: Client, node: int, group: int) -> int:
    """Commit the offsets of a group, with retries while its coordinator loads or changes. Returns the coordinator.
    Raises SystemExit if the commit is rejected."""
    while True:
        answer: OffsetCommitResponse = await client.send(commit_request(group), node=node, version=COMMIT_VERSION)
        codes = {ErrorCode(each.error_code) for topic in answer.topics for each in topic.partitions}
        if codes == {ErrorCode.NONE}:
            return node
        if not codes <= _UNSETTLED:
            raise SystemExit(f"a commit was refused: {codes}")
        await asyncio.sleep(0.1)
        node = await coordinator_of(client, group)


async def fill(bootstrap: str, groups: int) -> int:
    """Commit the offsets of all groups. Returns the node of their coordinator."""
    async with Client(bootstrap) as client:
        node = await commit(client, await coordinator_of(client, 0), 0)
        left: Iterator[int] = iter(range(1, groups))

        async def commit_some() -> None:
            coordinator = node
            for group in left:
                coordinator = await commit(client, coordinator, group)

        await asyncio.gather(*(commit_some() for _ in range(IN_FLIGHT)))
        return await coordinator_of(client, 0)


async def outcome(client: Client) -> ErrorCode:
    """Return how a broker responds to a fetch of one group's offsets."""
    try:
        answer: OffsetFetchResponse = await client.send(fetch_request(range(1)), version=FETCH_VERSION)
    except KafkaError as error:
        return error.code
    return ErrorCode(answer.groups[0].error_code)


async def wait_until_served(client: Client) -> tuple[float, float]:
    """Wait until a broker serves the offsets. Returns the time at which it does so, and the time at which it became the
    group's coordinator, both of ``time.perf_counter``. Raises SystemExit after ``PATIENCE_S``."""
    coordinates_since: float | None = None
    deadline = time.perf_counter() + PATIENCE_S
    while (asked := time.perf_counter()) < deadline:
        code = await outcome(client)
        if code is ErrorCode.NONE:
            return time.perf_counter(), coordinates_since or asked
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            coordinates_since = coordinates_since or asked
        await asyncio.sleep(POLL_S)
    raise SystemExit("no broker has served the offsets")


async def read_all(client: Client, groups: int) -> None:
    """Fetch all offsets from their coordinator. Raises SystemExit if they differ from what was committed."""
    for first in range(0, groups, GROUPS_PER_FETCH):
        asked = range(first, min(first + GROUPS_PER_FETCH, groups))
        answer: OffsetFetchResponse = await client.send(fetch_request(asked), version=FETCH_VERSION)
        for number, found in zip(asked, answer.groups, strict=True):
            offsets = {
                each.partition_index: each.committed_offset for topic in found.topics for each in topic.partitions
            }
            if offsets != {index: offset_of(number, index) for index in range(PARTITIONS)}:
                raise SystemExit(f"the offsets of {found.group_id} are wrong: {found}")


async def measure_failover(cluster: ReplicatedCluster, groups: int, figures: Figures) -> None:
    """Kill the coordinator, and measure the time until another broker serves the offsets."""
    victim = cluster.members[await fill(cluster.bootstrap, groups) - 1]
    await asyncio.sleep(SETTLE_S)
    others = [member for member in cluster.members if member is not victim]
    clients = [Client(member.bootstrap) for member in others]
    try:
        for client in clients:
            await outcome(client)
        cpu = sum(member.cpu_seconds() for member in others)
        memory = [member.resident_mb() for member in others]
        assert victim.process is not None
        victim.process.kill()
        began = time.perf_counter()
        waits = [asyncio.create_task(wait_until_served(client)) for client in clients]
        done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in rest:
            wait.cancel()
        coordinator = waits.index(done.pop())
        served, since = waits[coordinator].result()
        cpu = sum(member.cpu_seconds() for member in others) - cpu
        await read_all(clients[coordinator], groups)
        name = cluster.name
        figures["until the offsets are served, s", name].append(served - began)
        figures["of this, reading them back, s", name].append(served - since)
        figures["until all of them are fetched, s", name].append(time.perf_counter() - began)
        figures["CPU of both other brokers until then, s", name].append(cpu)
        grown = others[coordinator].resident_mb() - memory[coordinator]
        figures["memory of the new coordinator: growth, MB", name].append(grown)
    finally:
        for client in clients:
            await client.close()


def measure(cluster: ReplicatedCluster, groups: int, figures: Figures) -> None:
    """Measure a cluster for one turn, and add the results to ``figures``."""
    cluster.create_topic(TOPIC, PARTITIONS)
    asyncio.run(measure_failover(cluster, groups, figures))


def main() -> None:
    parser = turns_parser("bench.offsets", __doc__, rounds=3, of="cluster")
    parser.add_argument("--offsets", type=int, default=1_000_000, help="number of committed offsets")
    given = parser.parse_args()
    kinds = [partial(kind, extra=SETTINGS) for kind in clusters(given.alone)]
    groups = given.offsets // PARTITIONS
    report(in_turns(kinds, given.rounds, lambda cluster, figures: measure(cluster, groups, figures)))


if __name__ == "__main__":
    main()
