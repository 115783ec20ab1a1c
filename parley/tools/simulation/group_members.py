"""Simulated consumers in a classic group, which record what they hold and commit in the ``GroupLedger``.

A consumer joins, assigns the partitions at random if it leads the group, consumes its own from the committed offsets
on, sends heartbeats, and commits. Some consumers are static members (KIP-345). A seed decides which processes speak as
clients did before KIP-814.

A ``GroupConsumer`` is one place in the group, which one process after another has. Processes leave, die, stand still
for longer than their session, and come back; a static member may also be replaced while its process still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Any, Final

from parley.protocol.codec import decode_stored, encode_stored
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from parley.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from parley.protocol.messages.stored import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from parley.protocol.schema import Request
from parley.tools.simulation.client_invariants import Ledger
from parley.tools.simulation.clients import REQUEST_TIMEOUT_S, Reader
from parley.tools.simulation.group_ledger import GroupLedger, Place
from parley.tools.simulation.processes import Process
from parley.tools.simulation.world import World

GROUP: Final = "group"
SESSION_S: Final = 6.0
"""The shortest session timeout that brokers allow by default."""
REBALANCE_S: Final = 6.0
JOIN_LIMIT_S: Final = REBALANCE_S + 5.0
"""How long a client waits for the response to a JoinGroup: as long as the Java client, beyond the rebalance."""
HEARTBEAT_S: Final = 1.5
PROTOCOL: Final = "random"
_OLD: Final[dict[type[Request], int]] = {
    JoinGroupRequest: 5,
    SyncGroupRequest: 3,
    HeartbeatRequest: 3,
    LeaveGroupRequest: 3,
    OffsetCommitRequest: 7,
    OffsetFetchRequest: 5,
}
"""The oldest versions with static members. A static leader that returns is not told to keep the assignment."""
_NEW: Final[dict[type[Request], int]] = {
    JoinGroupRequest: 9,
    SyncGroupRequest: 5,
    HeartbeatRequest: 4,
    LeaveGroupRequest: 5,
    OffsetCommitRequest: 9,
    OffsetFetchRequest: 7,
}
_MUST_JOIN: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
"""Errors after which a member joins again."""
_MUST_JOIN_AS_NEW: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})


class _Fate(Enum):
    """What happens to the process of a group member."""

    STANDS_STILL = auto()
    DIES = auto()
    LEAVES = auto()
    IS_REPLACED = auto()


@dataclass(slots=True, eq=False)
class _Life:
    """One process of a group member."""

    member: _Member
    process: Process
    task: asyncio.Task[None]


class GroupConsumer:
    """One place in the group. Starts one process after another until ``settle``; the last one consumes until ``stop``.

    Its task belongs to no simulated process, since it stops and kills processes.
    """

    def __init__(
        self,
        name: str,
        world: World,
        ledger: Ledger,
        groups: GroupLedger,
        *,
        is_static: bool,
        stays_away: bool,
    ) -> None:
        """``stays_away`` is True if its last process dies at the end of all faults, for ever."""
        self.name = name
        self._world = world
        self._ledger = ledger
        self._groups = groups
        self._rng = world.random(name)
        self._instance_id = name if is_static else None
        self._stays_away = stays_away
        self._settled = asyncio.Event()
        self._stopped = asyncio.Event()
        self._lives: list[_Life] = []
        """All processes that have not been killed."""
        self._newest: _Life | None = None
        """The process that should consume; None after it was killed, or told to leave."""
        self._number = 0

    def settle(self) -> None:
        """From now on let the member consume undisturbed."""
        self._settled.set()

    def stop(self) -> None:
        """Let the member leave. Its task ends soon."""
        self._stopped.set()

    @property
    def consuming(self) -> str | None:
        """The name of the process that should consume, if there is one."""
        return self._newest.member.name if self._newest is not None else None

    async def live(self, topic: str, partitions: Sequence[int]) -> None:
        """Run one process after another."""
        while not self._settled.is_set():
            life = self._begin(topic, partitions)
            while (fate := await self._next_fate()) is _Fate.STANDS_STILL:
                self._note(life, "stands still")
                life.process.stop()
                await self._pause(self._rng.uniform(0.5, 1.5) * SESSION_S)
                life.process.resume(self._world.loop.take_back)
                self._note(life, "runs again")
            await self._meet(fate, life)
        if self._stays_away:
            for life in list(self._lives):
                self._kill(life)
        elif self._newest is None:
            self._begin(topic, partitions)
        await self._stopped.wait()
        for life in self._lives:
            life.member.stopping = True
        await asyncio.gather(*(life.task for life in self._lives))

    async def _next_fate(self) -> _Fate | None:
        """Wait until something happens to the process. None if the faults have ended before."""
        await self._pause(self._rng.uniform(1.0, 8.0))
        if self._settled.is_set():
            return None
        return self._rng.choice([each for each in _Fate if each is not _Fate.IS_REPLACED or self._instance_id])

    async def _meet(self, fate: _Fate | None, life: _Life) -> None:
        """Carry out the end of a process, and wait until the next one may start."""
        match fate:
            case _Fate.DIES:
                self._kill(life)
                await self._pause(self._rng.choice((self._rng.uniform(0.0, 2.0), self._rng.uniform(2.0, 12.0))))
            case _Fate.LEAVES:
                self._newest = None
                life.member.stopping = True
                await self._pause(self._rng.uniform(0.0, 8.0))
            case _Fate.IS_REPLACED:
                self._note(life, "is replaced")

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until ``settle``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()

    def _begin(self, topic: str, partitions: Sequence[int]) -> _Life:
        self._number += 1
        name = f"{self.name}.{self._number}"
        addresses = [machine.address for machine in self._world.machines.values()]
        member = _Member(name, addresses, self._ledger, self._groups, self._world.random(name), self._instance_id)
        process = self._world.client_process(name, host=self.name)
        for older in self._lives:
            older.member.is_newest = False
        life = self._newest = _Life(member, process, process.start(member.live(topic, partitions), name=name))
        self._lives.append(life)
        return life

    def _kill(self, life: _Life) -> None:
        self._note(life, "dies")
        self._newest = None
        self._lives.remove(life)
        life.process.die()
        self._world.network.process_died(life.process, silently=False)
        self._groups.releases(life.member.name)

    def _note(self, life: _Life, what: str) -> None:
        self._world.history.note("world", f"{life.member.name} {what}")


class _Member(Reader):
    """One process of a consumer."""

    def __init__(
        self,
        name: str,
        bootstrap: Iterable[tuple[str, int]],
        ledger: Ledger,
        groups: GroupLedger,
        rng: Random,
        instance_id: str | None,
    ) -> None:
        super().__init__(name, bootstrap, ledger, rng)
        self.is_newest = True
        """False once another process takes the place of this one."""
        self._groups = groups
        self._versions = _OLD if rng.random() < 0.3 else _NEW
        self._place = Place(name, "", instance_id, -1)
        self._coordinator: int | None = None
        self._must_join = True
        self._is_fenced = False
        """True once the group has given the place of this static member to another process."""
        self._leaders: dict[int, tuple[int, int]] = {}
        """The leaders of partitions with their epochs, until a fetch fails."""
        self._epochs: dict[int, int] = {}
        """The newest leader epochs known of partitions (KIP-320)."""
        self._positions: dict[int, int] = {}

    async def live(self, topic: str, partitions: Sequence[int]) -> None:
        """Consume with the group until ``stopping`` is set, or another process has taken the place."""
        try:
            while not self.stopping:
                try:
                    assigned = await self._join(topic, partitions)
                    await self._consume(topic, assigned)
                except KafkaError as error:
                    await self.retry_later("join", error)
                if self._is_fenced and not self.is_newest:
                    return
            await self._leave()
        finally:
            self._groups.releases(self.name)
            await self.client.close()

    # --- Membership ---

    async def _join(self, topic: str, partitions: Sequence[int]) -> tuple[int, ...]:
        """Take part in a rebalance, and return the assignment. Raises KafkaError."""
        joined = await self._join_group(topic)
        self._place = Place(self.name, joined.member_id, self._place.instance_id, joined.generation_id)
        assignments = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = self._assign(topic, partitions, joined.members)
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=self._place.instance_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=assignments,
        )
        replaced = self._groups.ids_of(self._place.instance_id)
        synced = await self._ask(request, lambda answer: answer.error_code, JOIN_LIMIT_S)
        self._must_join = self._is_fenced = False
        assigned = _partitions_in(synced.assignment)
        self._groups.assigned(self._place, assigned, replaced)
        return assigned

    async def _join_group(self, topic: str) -> JoinGroupResponse:
        subscription = encode_stored(ConsumerProtocolSubscription(topics=[topic]), 0)

        def code_of(answer: JoinGroupResponse) -> int:
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._place = Place(self.name, answer.member_id, self._place.instance_id, -1)
            return answer.error_code

        while True:
            request = JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=int(SESSION_S * 1000),
                rebalance_timeout_ms=int(REBALANCE_S * 1000),
                member_id=self._place.member_id,
                group_instance_id=self._place.instance_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=PROTOCOL, metadata=subscription)],
            )
            try:
                response: JoinGroupResponse = await self._ask(request, code_of, JOIN_LIMIT_S)
                return response
            except KafkaError as error:
                if error.code is not ErrorCode.MEMBER_ID_REQUIRED:
                    raise

    def _assign(
        self, topic: str, partitions: Sequence[int], members: Sequence[JoinGroupResponse.JoinGroupResponseMember]
    ) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        """Assign each partition to a member, at random, so that most rebalances move partitions."""
        order = self.rng.sample(list(members), len(members))
        shares = [tuple(partitions[i :: len(order)]) for i in range(len(order))]
        shares_by_member = list(zip(order, shares, strict=True))
        plan = {member.group_instance_id or member.member_id: share for member, share in shares_by_member}
        self._groups.assigns(self._place, plan)
        return [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member.member_id, assignment=_assignment(topic, share)
            )
            for member, share in shares_by_member
        ]

    async def _send_heartbeats(self) -> None:
        while not self._must_join:
            request = HeartbeatRequest(
                group_id=GROUP,
                generation_id=self._place.generation,
                member_id=self._place.member_id,
                group_instance_id=self._place.instance_id,
            )
            try:
                await self._ask(request, lambda answer: answer.error_code)
            except KafkaError as error:
                self.ledger.history.trace(f"{self.name} heartbeat: {error.code.name}")
            await asyncio.sleep(HEARTBEAT_S)

    async def _leave(self) -> None:
        """Leave the group. As Kafka's consumer, try it once; and mostly stay if this is a static member."""
        if not self._place.member_id or (self._place.instance_id is not None and self.rng.random() < 0.7):
            return
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=self._place.member_id, group_instance_id=self._place.instance_id
        )
        with suppress(KafkaError):
            request = LeaveGroupRequest(group_id=GROUP, members=[identity])
            await self._ask(request, lambda answer: answer.error_code or answer.members[0].error_code)

    # --- Consuming ---

    async def _consume(self, topic: str, assigned: Sequence[int]) -> None:
        """Read the partitions and commit until the group rebalances. Raises KafkaError."""
        heartbeats = asyncio.ensure_future(self._send_heartbeats())
        try:
            await self._find_positions(topic, assigned)
            while not self.stopping and not self._must_join:
                for partition in assigned:
                    await self._poll(topic, partition)
                if self.rng.random() < 0.5:
                    await self._commit(topic)
                await self.pause(0.3)
            await self._commit(topic)
        finally:
            heartbeats.cancel()
            self._groups.releases(self.name)

    async def _find_positions(self, topic: str, assigned: Sequence[int]) -> None:
        self._positions = {}
        wanted = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=list(assigned))
        request = OffsetFetchRequest(group_id=GROUP, topics=[wanted])

        def code_of(answer: Any) -> int:
            return answer.error_code or next((each.error_code for each in found(answer) if each.error_code), 0)

        def found(answer: Any) -> list[Any]:
            return [partition for each in answer.topics for partition in each.partitions]

        while not self._must_join and assigned:
            try:
                answer = await self._ask(request, code_of)
            except KafkaError as error:
                await self.retry_later("fetch offsets", error)
                continue
            for each in found(answer):
                known = self._epochs.get(each.partition_index, -1)
                self._epochs[each.partition_index] = max(known, each.committed_leader_epoch)
                offset = self._positions[each.partition_index] = max(each.committed_offset, 0)
                self._groups.begins(self._place, each.partition_index, offset)
            return

    async def _poll(self, topic: str, partition: int) -> None:
        """Read some records of a partition, from the member's position on."""
        position = self._positions.get(partition)
        if position is None or self._must_join:
            return
        try:
            if partition not in self._leaders:
                self._leaders[partition] = await self._leader(topic, partition, self._epochs.get(partition, -1))
            node, self._epochs[partition] = self._leaders[partition]
            self._positions[partition] = await self._fetch(topic, partition, position, node, self._epochs[partition])
        except KafkaError as error:
            self._leaders.pop(partition, None)
            await self.retry_later(f"poll {topic}-{partition}", error)

    async def _commit(self, topic: str) -> None:
        """Commit the positions. If that fails, the next commit includes them."""
        offsets = dict(self._positions)
        if not offsets or not self._place.member_id:
            return
        partitions = [
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=self._epochs.get(partition, -1),
                committed_metadata=None,
            )
            for partition, offset in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self._place.generation,
            member_id=self._place.member_id,
            group_instance_id=self._place.instance_id,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)],
        )

        def code_of(answer: Any) -> int:
            return next((each.error_code for each in answer.topics[0].partitions if each.error_code), 0)

        place, outdated = self._place, self._groups.commits(self._place, offsets)
        try:
            await self._ask(request, code_of)
        except KafkaError as error:
            self.ledger.history.trace(f"{self.name} commit: {error.code.name}")
            return
        self._groups.committed(place, offsets, outdated)

    # --- Requests ---

    async def _ask(self, request: Request, code_of: Callable[[Any], int], limit_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Send a request to the coordinator, and return the response. Raises KafkaError, also for its error code."""
        place = self._place
        try:
            if self._coordinator is None:
                self._coordinator = await self.client.coordinator(GROUP)
            node, version = self._coordinator, self._versions[type(request)]
            answer = await self.client.send(request, node=node, version=version, timeout=limit_s)
            code = ErrorCode(code_of(answer))
        except KafkaError:
            self._coordinator = None
            raise
        if code is ErrorCode.NONE:
            return answer
        if code in _MUST_JOIN:
            self._lose_place(place, code)
        elif code is not ErrorCode.MEMBER_ID_REQUIRED:
            self._coordinator = None
        raise KafkaError(code)

    def _lose_place(self, place: Place, code: ErrorCode) -> None:
        """Join again, because a request that was sent from this place failed; as a new member if the group has removed
        this one."""
        if place != self._place:
            return
        self._must_join = True
        self._is_fenced |= code is ErrorCode.FENCED_INSTANCE_ID
        if code in _MUST_JOIN_AS_NEW:
            self._place = Place(self.name, "", place.instance_id, -1)


def _assignment(topic: str, partitions: Sequence[int]) -> bytes:
    share = ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=list(partitions))
    return encode_stored(ConsumerProtocolAssignment(assigned_partitions=[share] if partitions else []), 0)


def _partitions_in(assignment: bytes) -> tuple[int, ...]:
    """The partitions of a member's assignment, which is empty if the leader did not know the member."""
    if not assignment:
        return ()
    decoded, _ = decode_stored(ConsumerProtocolAssignment, assignment)
    return tuple(partition for each in decoded.assigned_partitions for partition in each.partitions)
