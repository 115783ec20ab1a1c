"""Streams groups without I/O: a shard, the cluster's metadata, and the decisions made so far."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from parley.broker.coordinators.decision import Decision, KeyValue, Timer
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.streams.heartbeats import JOIN, Outcome, changes_nothing, heartbeat, in_all_steps
from parley.broker.coordinators.groups.streams.settings import streams_settings
from parley.broker.coordinators.groups.streams.streams_group import StreamsGroup
from parley.broker.metadata.image import MetadataImage
from parley.broker.network.request_context import RequestContext
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from tests.broker.coordinators.groups.consumer.bench import context, same_decision, with_topics
from tests.broker.coordinators.groups.grouped import surroundings

GROUP = "g"
REBALANCE_MS = 60_000

Request = StreamsGroupHeartbeatRequest
Tasks = dict[str, list[int]]


def topic(name: str, partitions: int = 0) -> Request.TopicInfo:
    return Request.TopicInfo(name=name, partitions=partitions, replication_factor=0, topic_configs=[])


def subtopology(
    id: str,
    sources: list[str],
    *,
    changelogs: tuple[str, ...] = (),
    sinks: tuple[str, ...] = (),
    repartitions: tuple[Request.TopicInfo, ...] = (),
    together: bool = False,
) -> Request.Subtopology:
    """Return a subtopology. With ``together``, all its source topics are in one copartition group."""
    group = Request.CopartitionGroup(
        source_topics=list(range(len(sources))),
        source_topic_regex=[],
        repartition_source_topics=list(range(len(repartitions))),
    )
    return Request.Subtopology(
        subtopology_id=id,
        source_topics=sources,
        source_topic_regex=[],
        state_changelog_topics=[topic(name) for name in changelogs],
        repartition_sink_topics=list(sinks),
        repartition_source_topics=list(repartitions),
        copartition_groups=[group] if together else [],
    )


def topology(*subtopologies: Request.Subtopology, epoch: int = 0) -> Request.Topology:
    return Request.Topology(epoch=epoch, subtopologies=list(subtopologies))


PLAIN = topology(subtopology("0", ["a"], changelogs=("store",)))
COUNTS = topology(
    subtopology("0", ["a"], sinks=("r",)), subtopology("1", [], repartitions=(topic("r"),), changelogs=("store",))
)
"""A word count: one subtopology gives each record its key, the other one counts."""


def ids(tasks: Tasks) -> list[Request.TaskIds]:
    return [Request.TaskIds(subtopology_id=each, partitions=indexes) for each, indexes in tasks.items()]


def said(found: Any) -> Tasks | None:
    """Return the tasks in a response."""
    return None if found is None else {each.subtopology_id: each.partitions for each in found}


def checked(
    request: StreamsGroupHeartbeatRequest, context: RequestContext, shard: GroupShard, now_ms: int
) -> Decision[Outcome]:
    """Decide about a heartbeat. If the shortcut finds that it changes nothing, check that the full decision agrees."""
    decision = heartbeat(request, context, shard, now_ms)
    if request.member_epoch >= JOIN and changes_nothing(request, context, shard):
        same_decision(decision, in_all_steps(request, context, shard, now_ms))
    return decision


class StreamsBench:
    """A shard to which decisions are applied immediately."""

    def __init__(self, image: MetadataImage, **properties: str) -> None:
        self.image = image
        self.now_ms = 1_000_000
        settings = {
            "group.streams.assignment.interval.ms": "0",
            "group.streams.initial.rebalance.delay.ms": "0",
        } | {name.replace("_", "."): text for name, text in properties.items()}
        around = surroundings(image, **settings)
        self._around = replace(
            around,
            image=lambda: self.image,
            assign_in_thread=lambda shard, group_id: self.assigning.append(group_id),
            streams_settings=lambda group_id: streams_settings(around.config(), self.image, group_id),
        )
        self.assigning: list[str] = []
        self.shard = GroupShard(0, self._around)
        self.log: list[KeyValue] = []
        self.timers: dict[Hashable, Timer] = {}
        self._endpoint_epochs: dict[str, int] = {}
        """The epochs of the endpoints that the members know."""

    # --- Decisions ---

    def decide(self, event: Callable[[GroupShard, int], Decision[Any]]) -> Any:
        """Make a decision and apply it. Raises the error of the decision."""
        decision = event(self.shard, self.now_ms)
        for key, value in decision.records:
            self.shard.replay(key, value, None, len(self.log))
            self.log.append((key, value))
        for name, timer in decision.timers.items():
            if timer is None:
                self.timers.pop(name, None)
            else:
                self.timers[name] = timer
        if decision.change is not None:
            decision.change()
        return decision.reply

    def fire(self, name: Hashable) -> None:
        """Trigger a timer."""
        self.decide(self.timers.pop(name).event)

    def reload(self) -> None:
        """Replay the log, as the next coordinator does."""
        self.shard.unloaded()
        self.shard = self.replayed()
        self.timers = dict(self.shard.loaded(self.now_ms))

    def replayed(self) -> GroupShard:
        """Return a shard that has replayed the log."""
        shard = GroupShard(0, self._around)
        for offset, (key, value) in enumerate(self.log):
            shard.replay(key, value, None, offset)
        return shard

    def change_topics(self, **partitions: int) -> None:
        """Replace the topics of the cluster. A topic that keeps its name keeps its id."""
        self.image = replace(with_topics(**partitions), version=self.image.version + 1)
        group = self.shard.streams_group(GROUP)
        if group is not None:
            group.metadata_checked = False

    @property
    def group(self) -> StreamsGroup:
        group = self.shard.streams_group(GROUP)
        assert group is not None
        return group

    # --- Heartbeats ---

    def outcome(self, member_id: str, epoch: int, **fields: Any) -> Outcome:
        known = self._endpoint_epochs.get(member_id, -1) if epoch > JOIN else -1
        request = Request(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, endpoint_information_epoch=known, **fields
        )
        found: Outcome = self.decide(lambda shard, now_ms: checked(request, context(0), shard, now_ms))
        self._endpoint_epochs[member_id] = found.response.endpoint_information_epoch
        return found

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> StreamsGroupHeartbeatResponse:
        return self.outcome(member_id, epoch, **fields).response

    def join(
        self, member_id: str, topology: Request.Topology = PLAIN, process: str = "", **fields: Any
    ) -> StreamsGroupHeartbeatResponse:
        return self.heartbeat(
            member_id,
            0,
            topology=topology,
            process_id=process or f"p-{member_id}",
            rebalance_timeout_ms=REBALANCE_MS,
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            **fields,
        )

    def owning(self, member_id: str, epoch: int, active: Tasks, standby: Tasks | None = None, **fields: Any) -> Any:
        """Send a heartbeat that reports the tasks of the member."""
        return self.heartbeat(
            member_id, epoch, active_tasks=ids(active), standby_tasks=ids(standby or {}), warmup_tasks=[], **fields
        )

    def leave(self, member_id: str) -> StreamsGroupHeartbeatResponse:
        return self.heartbeat(member_id, -1)
