"""Simulated Kafka Streams programs, each a member of a streams group (KIP-1071).

The topology has one subtopology, which reads the topic of the run, so each task corresponds to a partition of it. The
subtopology has a store with a changelog topic, which the coordinator creates. Each active task has a standby task,
which a program takes and gives up immediately. A seed decides whether a restarted program has kept its state directory,
and thus its process id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final

from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest
from parley.protocol.uuids import UUID
from parley.tools.simulation.client_invariants import Ledger
from parley.tools.simulation.consumer_group_ledger import MemberPlace
from parley.tools.simulation.group_processes import SESSION_S
from parley.tools.simulation.reconciling_members import HEARTBEAT_S, LEAVE, REBALANCE_S, ReconcilingMember
from parley.tools.simulation.streams_group_ledger import StreamsGroupLedger

STREAMS_GROUP: Final = "streams-group"
SUBTOPOLOGY: Final = "0"
CHANGELOG: Final = f"{STREAMS_GROUP}-store-changelog"
PROPERTIES: Final = {
    **{f"group.streams.{each}session.timeout.ms": str(int(SESSION_S * 1000)) for each in ("", "min.")},
    **{f"group.streams.{each}heartbeat.interval.ms": str(int(HEARTBEAT_S * 1000)) for each in ("", "min.")},
    "group.streams.initial.rebalance.delay.ms": "500",
    "group.streams.num.standby.replicas": "1",
}
"""Broker settings that make sessions as short as those of classic groups, and give each task a standby task."""


class StreamsProgram(ReconcilingMember):
    """A process of a Kafka Streams program with one thread."""

    def __init__(
        self,
        name: str,
        bootstrap: Iterable[tuple[str, int]],
        ledger: Ledger,
        groups: StreamsGroupLedger,
        rng: Random,
    ) -> None:
        place = MemberPlace(name, str(UUID(int=rng.getrandbits(128))), None, 0)
        super().__init__(STREAMS_GROUP, bootstrap, ledger, groups, rng, place)
        self._programs = groups
        self._process_id = name.rpartition(".")[0] if rng.random() < 0.5 else name
        self._standby: frozenset[int] = frozenset()
        self._endpoint_epoch = -1

    def has(self) -> object:
        return frozenset(self.held), self._standby

    def request(self, topic: str, *, is_full: bool, has_changed: bool) -> StreamsGroupHeartbeatRequest:
        request = self._with_epoch(self.place.epoch)
        if not self.place.epoch:
            request.rebalance_timeout_ms = int(REBALANCE_S * 1000)
            request.process_id = self._process_id
            request.topology = _topology(topic)
            request.client_tags = []
        if has_changed:
            request.active_tasks, request.standby_tasks = _tasks(self.held), _tasks(self._standby)
            request.warmup_tasks = []
        return request

    def _with_epoch(self, epoch: int) -> StreamsGroupHeartbeatRequest:
        return StreamsGroupHeartbeatRequest(
            group_id=STREAMS_GROUP,
            member_id=self.place.member_id,
            member_epoch=epoch,
            endpoint_information_epoch=self._endpoint_epoch,
        )

    def assigned_in(self, answer: Any) -> frozenset[int] | None:
        self._endpoint_epoch = answer.endpoint_information_epoch
        if answer.active_tasks is None:
            return None
        standby = _partitions(answer.standby_tasks)
        if standby != self._standby:
            self._standby = standby
            self._programs.copies(self.name, standby)
            self.news.set()
        return _partitions(answer.active_tasks)

    def goodbye(self) -> StreamsGroupHeartbeatRequest:
        return self._with_epoch(LEAVE)

    def abandoned(self) -> str:
        self._standby = frozenset()
        return super().abandoned()


def _topology(topic: str) -> StreamsGroupHeartbeatRequest.Topology:
    kind = StreamsGroupHeartbeatRequest
    changelog = kind.TopicInfo(name=CHANGELOG, partitions=0, replication_factor=0, topic_configs=[])
    subtopology = kind.Subtopology(
        subtopology_id=SUBTOPOLOGY,
        source_topics=[topic],
        source_topic_regex=[],
        state_changelog_topics=[changelog],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[],
    )
    return kind.Topology(epoch=0, subtopologies=[subtopology])


def _tasks(partitions: Iterable[int]) -> list[StreamsGroupHeartbeatRequest.TaskIds]:
    """Return these partitions as the tasks in a heartbeat."""
    ordered = sorted(partitions)
    tasks = StreamsGroupHeartbeatRequest.TaskIds(subtopology_id=SUBTOPOLOGY, partitions=ordered)
    return [tasks] if ordered else []


def _partitions(tasks: Sequence[Any]) -> frozenset[int]:
    return frozenset(partition for each in tasks for partition in each.partitions)
