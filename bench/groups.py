"""``python -m bench.groups``: the cost of consumer groups (KIP-848) and streams groups (KIP-1071), compared with Apache
Kafka.

The members are simulated, each with its own connection, and send what the Java client sends. The brokers take turns.

1. Heartbeats of stable groups per second of the broker's CPU time: all members in one group, or in many groups.
2. A group with a topic of many partitions: the time, and the broker's CPU time, from the first heartbeat until every
   partition is assigned and every member knows its assignment; then the same when another member joins.

Quote only the ratios: the figures depend on other load on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

from bench.clusters import KAFKA, Kafka, Measured, Parley
from bench.figures import Figures, report
from bench.turns import in_turns, turns_parser
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest
from parley.protocol.uuids import UUID

TOPIC, PARTITIONS = "read", 100
WIDE_TOPICS = [f"wide-{number}" for number in range(10)]
"""Topics that share the partitions, because Kafka cannot create 10,000 partitions at once."""
INTERVAL_S = 5.0
"""The default interval between two heartbeats of a member."""
ASSIGNMENT_INTERVAL_S = 1.0
"""The heartbeat interval while the time to an assignment is measured. It is shorter, so that waiting matters less."""
REBALANCE_TIMEOUT_MS = 300_000
AT_ONCE = 100
"""The maximum number of connections being opened, and of heartbeats without a response, at a time."""
POLL_S = 0.02
PATIENCE_S = 300.0
SETTINGS = {
    f"group.{kind}.{key}session.timeout.ms": "600000" for kind in ("consumer", "streams") for key in ("", "max.")
}
"""Settings with which no session expires, even if the machine is so busy that heartbeats are late."""
NOT_YET = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}


class PatientKafka(Kafka):
    def settings(self) -> dict[str, str]:
        return {**super().settings(), **SETTINGS}


class PatientParley(Parley):
    def command(self) -> list[str]:
        return [*super().command(), *(word for each in SETTINGS.items() for word in ("--override", "=".join(each)))]


class Member:
    """A member of a consumer group that behaves like the Java client. ``owned`` is what the broker has assigned."""

    kind = "consumer"

    def __init__(self, client: Client, group: str, topics: list[str]) -> None:
        self.client, self.group, self.topics = client, group, topics
        self.member_id = str(UUID(int=random.getrandbits(128), version=4))
        self.epoch = 0
        self.owned: list[Any] | None = None
        self.beats = 0
        self._must_report = False
        self._turn = asyncio.Lock()

    @property
    def partitions(self) -> int:
        return sum(len(each.partitions) for each in self.owned or ())

    async def beat(self) -> None:
        """Send a heartbeat, and further ones as long as the assignment in the response changes. Raises SystemExit if
        the broker rejects one."""
        async with self._turn:
            await self._exchange()
            while self._must_report:
                await self._exchange()

    async def _exchange(self) -> None:
        response = await self.client.send(self._request())
        code = ErrorCode(response.error_code)
        if code in NOT_YET:
            return
        if code:
            raise SystemExit(f"{self.group}: {code.name}: {response.error_message}")
        self.beats += 1
        self.epoch = response.member_epoch
        assigned = self._assigned(response)
        self._must_report = assigned is not None
        self.owned = assigned if assigned is not None else self.owned

    def _request(self) -> Any:
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=self.epoch)
        if self.epoch == 0:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.subscribed_topic_names = self.topics
            request.topic_partitions = []
        elif self._must_report:
            make = ConsumerGroupHeartbeatRequest.TopicPartitions
            request.topic_partitions = [
                make(topic_id=each.topic_id, partitions=each.partitions) for each in self.owned or ()
            ]
        return request

    def _assigned(self, response: Any) -> list[Any] | None:
        return None if response.assignment is None else list(response.assignment.topic_partitions)

    async def leave(self) -> None:
        self.epoch, self._must_report = -1, False
        await self.client.send(self._request())


class StreamsMember(Member):
    """A stateless Kafka Streams application that reads a topic with one thread."""

    kind = "streams"

    def _request(self) -> Any:
        kind = StreamsGroupHeartbeatRequest
        request = kind(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, endpoint_information_epoch=0
        )
        if self.epoch == 0:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.process_id = self.member_id
            request.client_tags = []
            subtopology = kind.Subtopology(
                subtopology_id="0",
                source_topics=self.topics,
                source_topic_regex=[],
                state_changelog_topics=[],
                repartition_sink_topics=[],
                repartition_source_topics=[],
                copartition_groups=[],
            )
            request.topology = kind.Topology(epoch=0, subtopologies=[subtopology])
        if self.epoch == 0 or self._must_report:
            request.active_tasks = [
                kind.TaskIds(subtopology_id=each.subtopology_id, partitions=each.partitions)
                for each in self.owned or ()
            ]
            request.standby_tasks = request.warmup_tasks = []
        return request

    def _assigned(self, response: Any) -> list[Any] | None:
        return None if response.active_tasks is None else list(response.active_tasks)


# --- Their heartbeats ---


@asynccontextmanager
async def beating(members: Sequence[Member], interval_s: float) -> AsyncIterator[None]:
    """Have every member send a heartbeat once per interval, spread over the interval. Raises the errors of a
    heartbeat.

    At the end, the heartbeats in flight are completed, because a member must not miss its next epoch. If the machine is
    too busy for the interval, the interval grows: at most ``AT_ONCE`` heartbeats are in flight.
    """
    began = time.perf_counter()
    turns = ((began + n * interval_s / len(members), members[n % len(members)]) for n in count())
    async with asyncio.TaskGroup() as tasks:
        ended = asyncio.Event()
        for _ in range(min(AT_ONCE, len(members))):
            tasks.create_task(_keep_beating(turns, ended))
        yield
        ended.set()


async def _keep_beating(turns: Iterator[tuple[float, Member]], ended: asyncio.Event) -> None:
    for due, member in turns:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if ended.is_set():
            return
        await member.beat()


def _is_stable(group: Sequence[Member], partitions: int) -> bool:
    owned = [each.partitions for each in group]
    is_shared = sum(owned) == partitions and min(owned) == partitions // len(group)
    return is_shared and len({each.epoch for each in group}) == 1


async def until_stable(members: Sequence[Member], partitions: int) -> None:
    """Wait until the members of each group are in the same epoch and share all partitions equally. Raises SystemExit
    after ``PATIENCE_S``."""
    groups: dict[str, list[Member]] = defaultdict(list)
    for member in members:
        groups[member.group].append(member)
    deadline = time.perf_counter() + PATIENCE_S
    for name, group in groups.items():
        while not _is_stable(group, partitions):
            if time.perf_counter() > deadline:
                raise SystemExit(f"{name} is not stable")
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def connected(bootstrap: str, number: int) -> AsyncIterator[list[Client]]:
    """Connect ``number`` clients, and close them at the end of the context."""
    clients = [Client(bootstrap) for _ in range(number)]
    async with AsyncExitStack() as stack:
        for first in range(0, number, AT_ONCE):
            await asyncio.gather(*map(stack.enter_async_context, clients[first : first + AT_ONCE]))
        await clients[0].metadata([])
        yield clients


async def find_coordinator(client: Client, group: str) -> None:
    """Make the broker create the coordinators' internal topic."""
    while True:
        try:
            await client.coordinator(group)
            return
        except KafkaError as error:
            if error.code not in NOT_YET:
                raise
            await asyncio.sleep(0.1)


# --- What is measured ---


async def measure_heartbeats(
    broker: Measured, kind: type[Member], clients: list[Client], groups: int, seconds: float, figures: Figures
) -> None:
    """Measure the cost of the heartbeats of stable groups. The first interval is a warm-up."""
    members = [
        kind(client, f"{kind.kind}-{groups}-{number % groups}", [TOPIC]) for number, client in enumerate(clients)
    ]
    async with beating(members, INTERVAL_S):
        await until_stable(members, PARTITIONS)
        await asyncio.sleep(2 * INTERVAL_S)
        cpu, beats = broker.cpu_seconds(), sum(each.beats for each in members)
        await asyncio.sleep(seconds)
        cpu, beats = broker.cpu_seconds() - cpu, sum(each.beats for each in members) - beats
    label = f"{len(members)} members in {groups} {kind.kind} group{'s' if groups > 1 else ''}"
    note(figures, f"{label}: heartbeats per CPU s", broker, beats / cpu)
    for first in range(0, len(members), AT_ONCE):
        await asyncio.gather(*(each.leave() for each in members[first : first + AT_ONCE]))


async def measure_assignment(broker: Measured, clients: list[Client], partitions: int, figures: Figures) -> None:
    """Measure how long a group needs for a stable assignment: at first, and when another member joins.

    Another group shows beforehand that the coordinator knows the topic: Kafka creates the logs after its response.
    """
    probe = Member(clients[0], "probe", WIDE_TOPICS)
    async with beating([probe], ASSIGNMENT_INTERVAL_S):
        await until_stable([probe], partitions)
    await probe.leave()
    members = [Member(client, "wide", WIDE_TOPICS) for client in clients]
    label = f"{len(members) - 1} members x {partitions} partitions"
    for what, joining in (("first assignment", members[:-1]), ("one joins", members)):
        cpu, began = broker.cpu_seconds(), time.perf_counter()
        async with beating(joining, ASSIGNMENT_INTERVAL_S):
            await members[-1].beat() if joining is members else None
            await until_stable(joining, partitions)
            note(figures, f"{label}, {what}: s", broker, time.perf_counter() - began)
            note(figures, f"{label}, {what}: CPU s", broker, broker.cpu_seconds() - cpu)
            await asyncio.sleep(2 * ASSIGNMENT_INTERVAL_S)


def note(figures: Figures, label: str, broker: Measured, value: float) -> None:
    """Record a figure and print it."""
    figures[label, broker.name].append(value)
    print(f"{broker.name}: {label}: {value:.2f}", file=sys.stderr, flush=True)


async def measure(broker: Measured, given: argparse.Namespace, figures: Figures) -> None:
    """Measure a broker for one turn, and add the results to ``figures``."""
    async with connected(broker.bootstrap, max(given.members, given.assigned + 1)) as clients:
        await find_coordinator(clients[0], "any")
        for kind in (Member, StreamsMember):
            for groups in given.groups:
                await measure_heartbeats(broker, kind, clients[: given.members], groups, given.seconds, figures)
        if given.assigned:
            for topic in WIDE_TOPICS:
                await asyncio.to_thread(broker.create_topic, topic, given.partitions // len(WIDE_TOPICS))
            await measure_assignment(broker, clients[: given.assigned + 1], given.partitions, figures)


def main() -> None:
    parser = turns_parser("bench.groups", __doc__, rounds=2)
    parser.add_argument("--members", type=int, default=10_000, help="members that send heartbeats")
    parser.add_argument("--groups", type=int, nargs="*", default=[1, 100], help="numbers of groups that share them")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long heartbeats are counted")
    parser.add_argument("--assigned", type=int, default=1_000, help="members that get partitions; 0: do not measure")
    parser.add_argument("--partitions", type=int, default=10_000, help="partitions that they get")
    given = parser.parse_args()
    kinds: list[type[Measured]] = [PatientKafka, PatientParley]
    if given.alone or not KAFKA.exists():
        kinds = [PatientParley]

    def measure_turn(broker: Measured, figures: Figures) -> None:
        broker.create_topic(TOPIC, PARTITIONS)
        asyncio.run(measure(broker, given, figures))

    report(in_turns(kinds, given.rounds, measure_turn))


if __name__ == "__main__":
    main()
