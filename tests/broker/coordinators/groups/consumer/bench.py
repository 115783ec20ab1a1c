"""Consumer groups without I/O: a shard, the cluster's metadata, and the decisions made so far."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any

from parley.broker.coordinators.decision import Decision, Held, KeyValue, Timer
from parley.broker.coordinators.groups.classic.member_decisions import Joiner
from parley.broker.coordinators.groups.classic_requests import heartbeat as classic_heartbeat
from parley.broker.coordinators.groups.classic_requests import join, leave, sync
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.heartbeats import JOIN, Sender, changes_nothing, heartbeat, in_all_steps
from parley.broker.coordinators.groups.consumer.member import Progress
from parley.broker.coordinators.groups.consumer.regexes import (
    Matches,
    install_matches,
    matching,
    next_turn,
    subscribed_regexes,
)
from parley.broker.coordinators.groups.consumer.topics import version_of
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, PartitionState, TopicImage
from parley.broker.network.request_context import ConnectedClient, RequestContext
from parley.broker.security.principal import ANONYMOUS
from parley.broker.security.session import ClientSession
from parley.protocol.codec import encode_stored
from parley.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from parley.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from parley.protocol.messages.stored import ConsumerProtocolSubscription
from parley.protocol.uuids import UUID
from tests.broker.coordinators.groups.grouped import surroundings

GROUP = "g"
REBALANCE_MS = 60_000


def context(version: int = 1) -> RequestContext:
    session = ClientSession(ANONYMOUS, "client", "PLAINTEXT")
    return RequestContext(68, version, 1, "c", ConnectedClient(session, 1), 0.0)


def topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().ljust(16, b"\0"))


def with_topics(**partitions: int) -> MetadataImage:
    """Return the metadata of a cluster with these topics."""
    broker = BrokerRegistration(1, 1, UUID(int=1), (), rack="r1")
    topics = {
        name: TopicImage(name, topic_id(name), (PartitionState((1,), (1,), 1),) * count)
        for name, count in partitions.items()
    }
    return MetadataImage(
        "c", brokers={1: broker}, topics=topics, topic_names={each.topic_id: name for name, each in topics.items()}
    )


def matched(regexes: Iterable[str], names: Iterable[str]) -> Matches:
    """Run a match to its end."""
    turns = matching(regexes, names)
    while (found := next_turn(turns)) is None:
        pass
    return found


def checked(
    request: ConsumerGroupHeartbeatRequest, sender: Sender, shard: GroupShard, now_ms: int
) -> Decision[ConsumerGroupHeartbeatResponse]:
    """Decide about a heartbeat. If the shortcut finds that it changes nothing, check that the full decision agrees."""
    decision = heartbeat(request, sender, shard, now_ms)
    if request.member_epoch >= JOIN and changes_nothing(request, sender.context, shard):
        same_decision(decision, in_all_steps(request, sender, shard, now_ms))
    return decision


def same_decision(one: Decision[Any], other: Decision[Any]) -> None:
    """Check that two decisions change nothing, and have the same reply and timers."""
    assert one.reply == other.reply
    assert [*one.records, *other.records] == []
    assert (one.then, other.then) == (None, None)
    assert delays(one) == delays(other)


def delays(decision: Decision[Any]) -> dict[Hashable, float | None]:
    return {key: None if timer is None else timer.delay_ms for key, timer in decision.timers.items()}


class ConsumerBench:
    """A shard to which decisions are applied immediately."""

    def __init__(self, image: MetadataImage, **properties: str) -> None:
        self.image = image
        self.now_ms = 1_000_000
        settings = {"group.consumer.assignment.interval.ms": "0"} | {
            name.replace("_", "."): text for name, text in properties.items()
        }
        around = surroundings(image, **settings)
        self._around = replace(
            around,
            image=lambda: self.image,
            topics_version=lambda: version_of(self.image),
            assign_in_thread=lambda shard, group_id: None,
            match_in_thread=lambda shard, group_id, context: self.resolving.append(group_id),
            batch_bytes_max=lambda partition: self.batch_bytes_max,
        )
        self.batch_bytes_max = 1 << 20
        self.resolving: list[str] = []
        self.shard = GroupShard(0, self._around)
        self.log: list[KeyValue] = []
        self.timers: dict[Hashable, Timer] = {}
        self.released: dict[Hashable, Any] = {}

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
        self.released.update(decision.released)
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
        group = self.shard.consumer_group(GROUP)
        if group is not None:
            group.metadata_checked = False

    def resolve(self) -> None:
        """Match the regular expressions of the group, as the worker thread does."""
        group = self.group
        found = matched(subscribed_regexes(group), self.image.topics).topics
        self.decide(lambda shard, now_ms: install_matches(GROUP, found, version_of(self.image), shard, now_ms))

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.consumer_group(GROUP)
        assert group is not None
        return group

    # --- Members of the consumer protocol ---

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch, **fields)
        response: ConsumerGroupHeartbeatResponse = self.decide(
            lambda shard, now_ms: checked(request, Sender(context(), "new"), shard, now_ms)
        )
        return response

    def join(self, member_id: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        wanted = {"rebalance_timeout_ms": REBALANCE_MS, "topic_partitions": [], **fields}
        if topics:
            wanted["subscribed_topic_names"] = list(topics)
        return self.heartbeat(member_id, 0, **wanted)

    def progress(self, member_id: str) -> Progress:
        return self.group.members[member_id].progress

    def targets(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return the target assignment by topic name."""
        names = self.image.topic_names
        return {
            member_id: {names[topic]: partitions for topic, partitions in target.items() if topic in names}
            for member_id, target in self.group.targets.items()
        }

    def assigned(self, member_id: str) -> dict[str, list[int]]:
        """Return a member's assignment by topic name."""
        names = self.image.topic_names
        return {names[topic]: list(each) for topic, each in self.progress(member_id).assigned.items()}

    # --- Members of the classic protocol ---

    def classic_join(
        self,
        member_id: str,
        *topics: str,
        instance: str | None = None,
        new_id: str = "",
        version: int = 9,
        protocol_type: str = "consumer",
    ) -> JoinGroupResponse | None:
        """Join, and return the response, or None if the request waits."""
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription(*topics)),
            ],
        )
        joiner = Joiner("c", "client", version, new_id)
        reply = self.decide(lambda shard, now_ms: join(request, joiner, context(version), shard, now_ms))
        return None if isinstance(reply, Held) else reply

    def classic_sync(self, member_id: str, generation: int, **assignments: bytes) -> Any:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=data)
                for each, data in assignments.items()
            ],
        )
        return self.decide(lambda shard, now_ms: sync(request, shard, now_ms))

    def classic_heartbeat(self, member_id: str, generation: int) -> Any:
        request = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        return self.decide(lambda shard, now_ms: classic_heartbeat(request, shard, now_ms))

    def classic_heartbeat_of_static(self, member_id: str, instance: str, generation: int) -> Any:
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return self.decide(lambda shard, now_ms: classic_heartbeat(request, shard, now_ms))

    def classic_leave(self, member_id: str) -> Any:
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id)
        return self.decide(lambda shard, now_ms: leave(GROUP, [identity], shard, now_ms))


def subscription(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    """Return the metadata with which a consumer of the classic protocol joins."""
    kind = ConsumerProtocolSubscription
    return encode_stored(
        kind(
            topics=list(topics),
            owned_partitions=[
                kind.TopicPartition(topic=topic, partitions=partitions) for topic, partitions in (owned or {}).items()
            ],
        ),
        3,
    )
