"""Simulated consumers of the consumer protocol (KIP-848), which record what they have in the ``ConsumerGroupLedger``.

One task sends heartbeats: it joins, hears what the member is to have, and says what it has. Another one gives up and
takes partitions, reads them, and commits. Giving up takes a while, in which the member still commits. A seed decides
whether a member subscribes by name or by regular expression, which assignor it wants, and who chooses its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final
from uuid import UUID

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from parley.protocol.messages.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from parley.tools.simulation.client_invariants import Ledger
from parley.tools.simulation.consumer_group_ledger import ConsumerGroupLedger, MemberPlace
from parley.tools.simulation.group_processes import SESSION_S
from parley.tools.simulation.group_reading import COMMIT_CHANCE, GroupReader, commit_code

CONSUMER_GROUP: Final = "consumer-group"
HEARTBEAT_S: Final = 1.5
REBALANCE_S: Final = 30.0
"""The time that a member has to give up partitions: more than it needs with any fault, so that none is removed for
that before its session ends."""
REVOCATION_S: Final = 1.5
"""The longest time that a member takes to give up partitions."""
PROPERTIES: Final = {
    **{f"group.consumer.{each}session.timeout.ms": str(int(SESSION_S * 1000)) for each in ("", "min.")},
    **{f"group.consumer.{each}heartbeat.interval.ms": str(int(HEARTBEAT_S * 1000)) for each in ("", "min.")},
}
"""What the brokers need, so that sessions are as short as those of classic groups."""
_ID_OF_CLIENT: Final = 1
"""The version of ConsumerGroupHeartbeat from which on the client chooses its id, and may send regular expressions."""
_COMMIT_VERSION: Final = 9
_FETCH_OFFSETS_VERSION: Final = 9
_LEAVE: Final = -1
_LEAVE_FOR_NOW: Final = -2
_ABANDON: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.FENCED_INSTANCE_ID})
"""Errors of a heartbeat after which a member has no partitions, and joins again."""


class ConsumerProtocolMember(GroupReader):
    """One process of a consumer."""

    def __init__(
        self,
        name: str,
        bootstrap: Iterable[tuple[str, int]],
        ledger: Ledger,
        groups: ConsumerGroupLedger,
        rng: Random,
        instance_id: str | None,
    ) -> None:
        super().__init__(CONSUMER_GROUP, name, bootstrap, ledger, rng)
        self._groups = groups
        self._version = rng.choice((0, _ID_OF_CLIENT))
        self._place = MemberPlace(name, str(UUID(int=rng.getrandbits(128))) if self._version else "", instance_id, 0)
        self._regex = "re[a-c]ords" if self._version and rng.random() < 0.4 else None
        self._assignor = rng.choice((None, "uniform", "range"))
        self._topic_id = UUID(int=0)
        self._assigned: frozenset[int] = frozenset()
        """What the coordinator has assigned to the member."""
        self._reported: frozenset[int] | None = None
        """What the coordinator knows that the member has; None if the next heartbeat must say everything."""
        self._held: set[int] = set()
        self._joins = 0
        """How often the member has had to join: what began before is not to be finished."""
        self._news = asyncio.Event()
        """Set when the coordinator has to hear something soon."""
        self._is_fenced = False
        """True once the group has given the place of this static member to another process."""

    async def live(self, topic: str, partitions: Sequence[int]) -> None:
        """Consume with the group until ``stopping`` is set, or another process has taken the place."""
        heartbeats = asyncio.ensure_future(self._send_heartbeats(topic))
        try:
            while not self.stopping and self.is_newest:
                await self._approach(topic)
                await self._consume(topic)
                await self.pause(0.3)
            if not self.is_newest:
                await self.pause(SESSION_S)
            await self._commit(topic)
            heartbeats.cancel()
            self._groups.releases(self.name)
            await self._leave()
        finally:
            heartbeats.cancel()
            self._groups.releases(self.name)
            await self.client.close()

    # --- Heartbeats ---

    async def _send_heartbeats(self, topic: str) -> None:
        while not self._is_fenced or self.is_newest:
            try:
                self._news.clear()
                await self._beat(topic)
            except KafkaError as error:
                self._reported = None
                await self.retry_later("heartbeat", error)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._news.wait()

    async def _beat(self, topic: str) -> None:
        """Send a heartbeat, and take what the coordinator answers. Raises KafkaError."""
        place, held = self._place, frozenset(self._held)
        is_full = self._reported is None or not place.epoch
        request = ConsumerGroupHeartbeatRequest(
            group_id=CONSUMER_GROUP, member_id=place.member_id, member_epoch=place.epoch, instance_id=place.instance_id
        )
        if is_full:
            request.rebalance_timeout_ms = int(REBALANCE_S * 1000)
            request.subscribed_topic_names = [] if self._regex else [topic]
            request.subscribed_topic_regex = self._regex
            request.server_assignor = self._assignor
        if is_full or held != self._reported:
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=self._topic_id, partitions=sorted(held))
            ][: len(held)]
        known_epoch = place.epoch or self._groups.newest_epoch
        answer = await self.ask_coordinator(request, self._version)
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            self.coordinator = None
            self._is_fenced |= code is ErrorCode.FENCED_INSTANCE_ID
            if code in _ABANDON:
                self._abandon()
            raise KafkaError(code)
        self._is_fenced = False
        self._reported = held
        self._place = MemberPlace(self.name, answer.member_id, place.instance_id, answer.member_epoch)
        if answer.assignment is not None:
            self._assigned = self._partitions_in(answer.assignment)
        self._groups.heard(self._place, self._assigned, known_epoch)

    def _partitions_in(self, assignment: Any) -> frozenset[int]:
        found = set()
        for each in assignment.topic_partitions:
            self._topic_id = each.topic_id
            found.update(each.partitions)
        return frozenset(found)

    def _abandon(self) -> None:
        """Give up everything at once, and join again."""
        self._joins += 1
        self._assigned, self._held, self.positions = frozenset(), set(), {}
        member_id = self._place.member_id if self._version else ""
        self._place = MemberPlace(self.name, member_id, self._place.instance_id, 0)
        self._groups.releases(self.name)

    async def _leave(self) -> None:
        """Leave the group. As Kafka's consumer, try it once; and mostly for now only if this is a static member."""
        if not self._place.epoch:
            return
        leaves_for_now = self._place.instance_id is not None and (not self.is_newest or self.rng.random() < 0.7)
        request = ConsumerGroupHeartbeatRequest(
            group_id=CONSUMER_GROUP,
            member_id=self._place.member_id,
            member_epoch=_LEAVE_FOR_NOW if leaves_for_now else _LEAVE,
            instance_id=self._place.instance_id,
        )
        with suppress(KafkaError):
            await self.ask_coordinator(request, self._version)

    # --- Partitions ---

    async def _approach(self, topic: str) -> None:
        """Give up what the coordinator wants back, after a last commit; then take what is new."""
        joins, surplus = self._joins, self._held - self._assigned
        if surplus:
            await self.pause(REVOCATION_S)
            await self._commit(topic)
            if joins != self._joins:
                return
            self._held -= surplus
            self.positions = {each: offset for each, offset in self.positions.items() if each not in surplus}
            self._groups.gives_up(self.name, surplus)
            self._news.set()
        for partition in sorted(self._assigned - self._held):
            self._held.add(partition)
            self._groups.holds(self._place, partition)
            self._news.set()

    async def _consume(self, topic: str) -> None:
        for partition in sorted(self._held):
            if partition in self._held and partition not in self.positions:
                await self._find_position(topic, partition)
            if partition in self.positions:
                await self.poll(topic, partition)
        if self.rng.random() < COMMIT_CHANCE:
            await self._commit(topic)

    async def _find_position(self, topic: str, partition: int) -> None:
        joins, place = self._joins, self._place
        kind = OffsetFetchRequest
        group = kind.OffsetFetchRequestGroup(
            group_id=CONSUMER_GROUP,
            member_id=place.member_id,
            member_epoch=place.epoch,
            topics=[kind.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])],
        )
        try:
            answer = await self.ask_coordinator(kind(groups=[group]), _FETCH_OFFSETS_VERSION)
        except KafkaError as error:
            await self.retry_later("fetch offsets", error)
            return
        found = answer.groups[0]
        partitions = [each for topics in found.topics for each in topics.partitions]
        code = found.error_code or next((each.error_code for each in partitions if each.error_code), 0)
        if code:
            self._failed(ErrorCode(code))
            await self.retry_later("fetch offsets", ErrorCode(code))
        elif joins == self._joins:
            self._groups.begins(place, partition, self.begin_at(partitions[0]))

    async def _commit(self, topic: str) -> None:
        """Commit the positions. If that fails, the next commit includes them."""
        offsets, place = dict(self.positions), self._place
        if not offsets:
            return
        request = OffsetCommitRequest(
            group_id=CONSUMER_GROUP,
            generation_id_or_member_epoch=place.epoch,
            member_id=place.member_id,
            group_instance_id=place.instance_id,
            topics=self.to_commit(topic, offsets),
        )
        outdated = self._groups.commits(place, offsets)
        try:
            answer = await self.ask_coordinator(request, _COMMIT_VERSION)
        except KafkaError as error:
            self.ledger.history.trace(f"{self.name} commit: {error.code.name}")
            return
        code = ErrorCode(commit_code(answer))
        if code is ErrorCode.NONE:
            self._groups.committed(place, offsets, outdated)
        else:
            self._failed(code)
            self.ledger.history.trace(f"{self.name} commit: {code.name}")

    def _failed(self, code: ErrorCode) -> None:
        """Ask for the coordinator again, unless it is the member that is out of date: its heartbeats find that out."""
        if code not in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.coordinator = None
