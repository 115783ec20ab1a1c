"""Any order of heartbeats, lost responses, restarts, timeouts, elections and changes of topics: one consumer group.

No I/O: decisions are applied to a shard directly. Clients behave as the protocol demands, so their own knowledge shows
whether a partition is owned twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from parley.protocol.codec import decode_stored
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from parley.protocol.messages.stored import ConsumerProtocolAssignment
from parley.protocol.uuids import UUID
from tests.broker.coordinators.groups.consumer.bench import GROUP, REBALANCE_MS, ConsumerBench, topic_id, with_topics
from tests.support.proportion import examples

FENCED = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
}
"""Errors after which a member gives up all its partitions, and joins again."""

clients = st.integers(0, 5)
Partitions = set[tuple[UUID, int]]


@dataclass
class Client:
    """A consumer. The static ones have an instance id."""

    number: int
    instance: str | None = None
    incarnation: int = 0
    is_classic: bool = False
    regex: str | None = None
    topics: tuple[str, ...] = ("a",)
    epoch: int = -1
    """-1: not a member."""
    owned: Partitions = field(default_factory=set)
    told: Partitions = field(default_factory=set)
    """The assignment of the last response. It takes effect with the next heartbeat: revoking takes time."""
    changed: bool = False
    """True if it has to send its subscription."""

    @property
    def member_id(self) -> str:
        return f"m{self.number}-{self.incarnation}"

    def gone(self) -> None:
        self.epoch, self.owned, self.told = -1, set(), set()

    def reported(self) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        by_topic: dict[UUID, list[int]] = {}
        for topic, partition in sorted(self.owned):
            by_topic.setdefault(topic, []).append(partition)
        kind = ConsumerGroupHeartbeatRequest.TopicPartitions
        return [kind(topic_id=topic, partitions=each) for topic, each in by_topic.items()]


class AnyConsumerGroup(RuleBasedStateMachine):
    """A group of up to six clients: two static ones, two that may use the classic protocol."""

    @initialize(assignor=st.sampled_from(["uniform", "range"]))
    def begin(self, assignor: str) -> None:
        """Begin with an empty log, which a follower reads record by record."""
        self.bench = ConsumerBench(with_topics(a=5, b=3), group_consumer_assignors=assignor)
        self.clients = [Client(number, f"i{number}" if number < 2 else None) for number in range(6)]
        self.epochs: dict[str, int] = {}
        self.last_epoch = 0
        self.follower = self.bench.replayed()
        self.seen_records = 0

    @staticmethod
    def _expect(error: KafkaError, codes: set[ErrorCode]) -> None:
        assert error.code in codes, error

    # --- Members of the consumer protocol ---

    @rule(number=clients, loses_response=st.booleans(), is_full=st.booleans(), is_slow=st.booleans())
    def heartbeat(self, number: int, loses_response: bool, is_full: bool, is_slow: bool) -> None:
        """A client joins, or sends its next heartbeat. A slow one has not revoked its partitions yet."""
        client = self.clients[number]
        if client.is_classic:
            return
        self._send(client, loses_response=loses_response, is_full=is_full, is_slow=is_slow)

    def _send(
        self, client: Client, *, loses_response: bool = False, is_full: bool = False, is_slow: bool = False
    ) -> None:
        if not is_slow:
            client.owned = set(client.told)
        fields: dict[str, Any] = {"instance_id": client.instance, "topic_partitions": client.reported()}
        joins = client.epoch < 0
        if joins or is_full or client.changed:
            fields |= {
                "rebalance_timeout_ms": REBALANCE_MS,
                "subscribed_topic_names": list(client.topics),
                "subscribed_topic_regex": client.regex or "",
            }
        try:
            response = self.bench.heartbeat(client.member_id, max(client.epoch, 0), **fields)
        except KafkaError as error:
            self._expect(error, FENCED | {ErrorCode.UNRELEASED_INSTANCE_ID})
            client.gone()
            return
        if loses_response and not joins:
            return
        client.changed = False
        client.epoch = response.member_epoch
        if response.assignment is not None:
            client.told = {
                (topic.topic_id, partition)
                for topic in response.assignment.topic_partitions
                for partition in topic.partitions
            }
            if client.owned <= client.told:
                client.owned = set(client.told)  # nothing to revoke first

    @rule(
        number=clients,
        topics=st.sampled_from([("a",), ("b",), ("a", "b"), ("a", "none")]),
        regex=st.sampled_from([None, None, "a|b", "b.*"]),
    )
    def subscribe(self, number: int, topics: tuple[str, ...], regex: str | None) -> None:
        """A client subscribes to other topics; the classic ones say so when they join again."""
        client = self.clients[number]
        if client.topics != topics or client.regex != regex:
            client.topics, client.regex, client.changed = topics, None if client.is_classic else regex, True

    @rule(number=clients, epoch=st.sampled_from([-1, -2]))
    def leave(self, number: int, epoch: int) -> None:
        """A client leaves; a static one perhaps for a while."""
        client = self.clients[number]
        if client.epoch < 0:
            return
        try:
            if client.is_classic:
                self.bench.classic_leave(client.member_id)
            else:
                asked = epoch if client.instance is not None else -1
                self.bench.heartbeat(client.member_id, asked, instance_id=client.instance)
        except KafkaError as error:
            self._expect(error, FENCED)
        client.gone()
        client.incarnation += 1

    @rule(number=clients)
    def crash(self, number: int) -> None:
        """A client dies without a word, and starts again with another member id."""
        client = self.clients[number]
        client.gone()
        client.incarnation += 1

    # --- Members of the classic protocol ---

    @rule(number=st.integers(4, 5))
    def change_protocol(self, number: int) -> None:
        """A client restarts with the other protocol, after leaving."""
        self.leave(number, -1)
        client = self.clients[number]
        client.is_classic = not client.is_classic
        client.regex = None

    @rule(number=st.integers(4, 5))
    def classic_round(self, number: int) -> None:
        """A classic client of a consumer group sends a heartbeat, and joins and syncs again if it is told to."""
        client = self.clients[number]
        group = self.bench.shard.consumer_group(GROUP)
        if not client.is_classic or group is None or not group.members:
            return
        self._classic(client)

    def _classic(self, client: Client) -> None:
        try:
            if client.epoch >= 0:
                code = self.bench.classic_heartbeat(client.member_id, client.epoch)
                if code is ErrorCode.NONE and not client.changed:
                    return
            joined = self.bench.classic_join(client.member_id, *client.topics)
            assert joined is not None
            client.changed = False
            client.epoch = joined.generation_id
            synced = self.bench.classic_sync(client.member_id, client.epoch)
            stored, _ = decode_stored(ConsumerProtocolAssignment, synced.assignment)
            client.owned = client.told = {
                (topic_id(each.topic), partition)
                for each in stored.assigned_partitions
                for partition in each.partitions
            }
        except KafkaError as error:
            expected = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}
            self._expect(error, FENCED | expected)
            if error.code in FENCED or error.code is ErrorCode.ILLEGAL_GENERATION:
                client.gone()

    # --- What happens around the clients ---

    @rule(data=st.data())
    def time_out(self, data: st.DataObject) -> None:
        """A timer is due: the client that it is about finds out later, and must not be believed until then."""
        due = sorted([name for name in self.bench.timers if isinstance(name, tuple)], key=str)
        if not due:
            return
        name: Any = data.draw(st.sampled_from(due))
        self.bench.now_ms += 1_000
        self.bench.fire(name)
        group = self.bench.shard.consumer_group(GROUP)
        for client in self.clients:
            if group is None or client.member_id not in group.members:
                client.gone()

    @rule()
    def elect(self) -> None:
        """Another broker becomes the coordinator."""
        self.bench.reload()

    @rule(a=st.integers(1, 7), b=st.integers(0, 4))
    def change_topics(self, a: int, b: int) -> None:
        """Topics get more partitions, or are deleted."""
        known = {name: len(topic.partitions) for name, topic in self.bench.image.topics.items()}
        topics = {"a": max(a, known.get("a", 0))}
        if b:
            topics["b"] = max(b, known.get("b", 0))
        self.bench.change_topics(**topics)
        for client in self.clients:
            client.owned = {each for each in client.owned if each[0] in self.bench.image.topic_names}
            client.told = {each for each in client.told if each[0] in self.bench.image.topic_names}

    @precondition(lambda self: self.bench.resolving)
    @rule()
    def resolve(self) -> None:
        """The regular expressions have been matched."""
        self.bench.resolving.clear()
        self.bench.now_ms += 11_000
        if self.bench.shard.consumer_group(GROUP) is not None:
            self.bench.resolve()

    # --- Invariants ---

    @invariant()
    def no_partition_is_owned_twice(self) -> None:
        owners = Counter(each for client in self.clients if client.epoch >= 0 for each in client.owned)
        assert not [each for each, count in owners.items() if count > 1], self._told()
        group = self.bench.shard.consumer_group(GROUP)
        if group is None:
            return
        stored = Counter(_owned(group))
        assert not [each for each, count in stored.items() if count > 1]
        assert {(t, p) for t, owners in group.owners.items() for p in owners} == set(stored)

    @invariant()
    def no_partition_is_a_target_twice(self) -> None:
        group = self.bench.shard.consumer_group(GROUP)
        if group is not None:
            targets = Counter((t, p) for target in group.targets.values() for t, ps in target.items() for p in ps)
            assert not [each for each, count in targets.items() if count > 1]
            assert group.targets.keys() <= group.members.keys()

    @invariant()
    def epochs_only_rise(self) -> None:
        group = self.bench.shard.consumer_group(GROUP)
        if group is None:
            self.epochs, self.last_epoch = {}, 0
            return
        assert group.epoch >= self.last_epoch
        assert group.target_epoch <= group.epoch
        self.last_epoch = group.epoch
        for member in group.members.values():
            epoch = member.progress.epoch
            assert epoch <= group.target_epoch
            assert epoch < 0 or epoch >= self.epochs.get(member.member_id, 0)
            self.epochs[member.member_id] = max(epoch, 0)

    @invariant()
    def the_log_says_the_same(self) -> None:
        for offset, (key, value) in enumerate(self.bench.log[self.seen_records :], self.seen_records):
            self.follower.replay(key, value, None, offset)
        self.seen_records = len(self.bench.log)
        live = self.bench.shard.consumer_group(GROUP)
        assert _lasting(self.follower.consumer_group(GROUP)) == _lasting(live)

    def _told(self) -> object:
        return [(client.member_id, client.epoch, sorted(client.owned)) for client in self.clients]

    def teardown(self) -> None:
        """At the end, every partition that a member subscribes to has exactly one owner."""
        if not hasattr(self, "bench"):
            return
        group = self.bench.shard.consumer_group(GROUP)
        if group is None or not group.members:
            return
        present = {client.member_id for client in self.clients}
        for member in list(group.members):
            if member not in present:
                self._end_session(member)  # its client crashed
        for _ in range(40):
            self.bench.now_ms += 11_000
            for client in self.clients:
                group = self.bench.shard.consumer_group(GROUP)
                if group is None or not group.members:
                    return  # the group is a classic one now, or it has no members
                if client.member_id not in group.members:
                    continue
                if client.is_classic:
                    self._classic(client)
                else:
                    self._send(client, is_full=True)
                    if client.epoch == -1:
                        self._end_session(client.member_id)  # a static member that was fenced joins after its session
                self.no_partition_is_owned_twice()
            if self.bench.resolving:
                self.bench.resolving.clear()
                self.bench.resolve()
        self._check_settled()

    def _end_session(self, member_id: str) -> None:
        name = ("member-session", GROUP, member_id)
        if name in self.bench.timers:
            self.bench.fire(name)

    def _check_settled(self) -> None:
        group = self.bench.group
        assert group.state() is ConsumerGroupState.STABLE
        image = self.bench.image
        wanted = {
            (image.topics[name].topic_id, partition)
            for name in group.subscribed_topics()
            if name in image.topics
            for partition in range(len(image.topics[name].partitions))
        }
        assert set(_owned(group)) == wanted
        assert {each for client in self.clients if client.member_id in group.members for each in client.owned} == wanted


def _owned(group: ConsumerGroup) -> list[tuple[UUID, int]]:
    return [
        (topic, partition)
        for member in group.members.values()
        for owned in (member.progress.assigned, member.progress.revoking)
        for topic, partitions in owned.items()
        for partition in partitions
    ]


def _lasting(group: ConsumerGroup | None) -> object:
    """What the log must say of a group."""
    if group is None:
        return None
    return (
        group.epoch,
        group.metadata_hash,
        group.members,
        group.static_ids,
        group.target_epoch,
        group.targets,
        group.regexes,
        group.owners,
        group.topic_subscribers,
        group.regex_subscribers,
    )


TestAnyConsumerGroup = AnyConsumerGroup.TestCase
TestAnyConsumerGroup.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
