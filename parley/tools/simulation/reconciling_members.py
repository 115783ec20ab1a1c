"""The common part of simulated members that receive their assignment from the coordinator: consumers (KIP-848) and
streams programs (KIP-1071).

They record what they hold in a ``ConsumerGroupLedger``. One task sends heartbeats: it joins, receives the member's
assignment, and reports what the member holds. Another task gives up and takes partitions, reads them, and commits.
Giving up takes a while, during which the member still commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from parley.protocol.schema import Request
from parley.tools.simulation.client_invariants import Ledger
from parley.tools.simulation.consumer_group_ledger import ConsumerGroupLedger, MemberPlace
from parley.tools.simulation.group_processes import SESSION_S
from parley.tools.simulation.group_reading import COMMIT_CHANCE, GroupReader, commit_code

HEARTBEAT_S: Final = 1.5
REBALANCE_S: Final = 30.0
"""The time that a member has to give up partitions. It is so long that the coordinator never removes a member for
exceeding it: with every fault, the session ends first."""
REVOCATION_S: Final = 1.5
"""The longest time that a member takes to give up partitions."""
LEAVE: Final = -1
"""The member epoch in the heartbeat with which a member leaves the group."""
_COMMIT_VERSION: Final = 9
_FETCH_OFFSETS_VERSION: Final = 9
_ABANDON: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.FENCED_INSTANCE_ID})
"""Heartbeat errors after which a member gives up all partitions and rejoins."""


class ReconcilingMember(GroupReader):
    """A process of a member. Subclasses implement the messages of their protocol."""

    def __init__(
        self,
        group: str,
        bootstrap: Iterable[tuple[str, int]],
        ledger: Ledger,
        groups: ConsumerGroupLedger,
        rng: Random,
        place: MemberPlace,
    ) -> None:
        super().__init__(group, place.who, bootstrap, ledger, rng)
        self.place = place
        self.held: set[int] = set()
        self.news = asyncio.Event()
        """Set when the next heartbeat should be sent early."""
        self.version = 0
        """The version of the member's heartbeat requests."""
        self._groups = groups
        self._assigned: frozenset[int] = frozenset()
        """The partitions that the coordinator has assigned to the member."""
        self._reported: object = None
        """What the member holds, as last reported to the coordinator. None if the next heartbeat must be a full one."""
        self._joins = 0
        """The number of times that the member has had to rejoin. A task compares it before and after a wait: work that
        was started before the latest rejoin must not be completed."""
        self._is_fenced = False
        """True once another process has replaced this static member."""

    # --- The protocol ---

    def has(self) -> object:
        """Return what the member holds, as a value that differs (``!=``) from the last reported one if the next
        heartbeat must report it."""
        return frozenset(self.held)

    def request(self, topic: str, *, is_full: bool, has_changed: bool) -> Request:
        """Return the next heartbeat. It contains all fields if ``is_full``, and the partitions that the member holds if
        ``has_changed``."""
        raise NotImplementedError

    def assigned_in(self, answer: Any) -> frozenset[int] | None:
        """Return the partitions that a response assigns, or None if they have not changed."""
        raise NotImplementedError

    def goodbye(self) -> Request:
        """Return the heartbeat with which the member leaves the group."""
        raise NotImplementedError

    def abandoned(self) -> str:
        """Clear the state that only this protocol has, and return the member id with which to rejoin."""
        return self.place.member_id

    async def live(self, topic: str, partitions: Sequence[int]) -> None:
        """Consume with the group until ``stopping`` is set, or until another process has replaced this member."""
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
                self.news.clear()
                await self._beat(topic)
            except KafkaError as error:
                self._reported = None
                await self.retry_later("heartbeat", error)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self.news.wait()

    async def _beat(self, topic: str) -> None:
        """Send a heartbeat, and process the coordinator's response. Raises KafkaError if there is none, or if it
        contains an error: the member may then have to rejoin."""
        place, has = self.place, self.has()
        is_full = self._reported is None or not place.epoch
        request = self.request(topic, is_full=is_full, has_changed=is_full or has != self._reported)
        known_epoch = place.epoch or self._groups.newest_epoch
        answer = await self.ask_coordinator(request, self.version)
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            self.coordinator = None
            self._is_fenced |= code is ErrorCode.FENCED_INSTANCE_ID
            if code in _ABANDON:
                self._abandon()
            raise KafkaError(code)
        self._is_fenced = False
        self._reported = has
        self.place = MemberPlace(self.name, answer.member_id, place.instance_id, answer.member_epoch)
        assigned = self.assigned_in(answer)
        if assigned is not None:
            self._assigned = assigned
        self._groups.heard(self.place, self._assigned, known_epoch)

    def _abandon(self) -> None:
        """Give up everything immediately, and rejoin."""
        self._joins += 1
        self._assigned, self.held, self.positions = frozenset(), set(), {}
        self.place = MemberPlace(self.name, self.abandoned(), self.place.instance_id, 0)
        self._groups.releases(self.name)

    async def _leave(self) -> None:
        """Leave the group. Like Kafka's clients, try only once."""
        if self.place.epoch:
            request = self.goodbye()
            with suppress(KafkaError):
                await self.ask_coordinator(request, self.version)

    # --- Partitions ---

    async def _approach(self, topic: str) -> None:
        """Move towards the assignment: commit and give up revoked partitions, then take newly assigned ones."""
        joins, surplus = self._joins, self.held - self._assigned
        if surplus:
            await self.pause(REVOCATION_S)
            await self._commit(topic)
            if joins != self._joins:
                return
            self.held -= surplus
            self.positions = {each: offset for each, offset in self.positions.items() if each not in surplus}
            self._groups.gives_up(self.name, surplus)
            self.news.set()
        for partition in sorted(self._assigned - self.held):
            self.held.add(partition)
            self._groups.holds(self.place, partition)
            self.news.set()

    async def _consume(self, topic: str) -> None:
        for partition in sorted(self.held):
            if partition in self.held and partition not in self.positions:
                await self._find_position(topic, partition)
            if partition in self.positions:
                await self.poll(topic, partition)
        if self.rng.random() < COMMIT_CHANCE:
            await self._commit(topic)

    async def _find_position(self, topic: str, partition: int) -> None:
        joins, place = self._joins, self.place
        kind = OffsetFetchRequest
        group = kind.OffsetFetchRequestGroup(
            group_id=self.group,
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
        """Commit the positions. If the commit fails, the next commit includes them."""
        offsets, place = dict(self.positions), self.place
        if not offsets:
            return
        request = OffsetCommitRequest(
            group_id=self.group,
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
        """Forget the coordinator after an error, so that the next request looks it up again. If the error says that the
        member id or epoch is outdated, keep the coordinator: the next heartbeat handles that error."""
        if code not in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.coordinator = None
