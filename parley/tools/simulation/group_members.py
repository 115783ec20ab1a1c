"""Simulated consumers in a classic group, which record their assignments and commits in the ``GroupLedger``.

A consumer joins, assigns the partitions at random if it leads the group, consumes its own partitions from the committed
offsets, sends heartbeats, and commits. Some consumers are static members (KIP-345). A seed decides which processes use
the request versions from before KIP-814.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
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
from parley.tools.simulation.clients import REQUEST_TIMEOUT_S
from parley.tools.simulation.group_ledger import GroupLedger, Place
from parley.tools.simulation.group_processes import SESSION_S
from parley.tools.simulation.group_reading import COMMIT_CHANCE, GroupReader, commit_code

GROUP: Final = "group"
REBALANCE_S: Final = 6.0
JOIN_LIMIT_S: Final = REBALANCE_S + 5.0
"""The time that a client waits for a JoinGroup response: as in the Java client, 5 s more than the rebalance timeout."""
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
"""The oldest versions with static members. Their responses do not allow a returning static leader to keep the
assignment."""
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
"""Errors after which a member joins the group again."""
_MUST_JOIN_AS_NEW: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})


class ClassicMember(GroupReader):
    """The process of a consumer that uses the classic protocol."""

    def __init__(
        self,
        name: str,
        bootstrap: Iterable[tuple[str, int]],
        ledger: Ledger,
        groups: GroupLedger,
        rng: Random,
        instance_id: str | None,
    ) -> None:
        super().__init__(GROUP, name, bootstrap, ledger, rng)
        self._groups = groups
        self._versions = _OLD if rng.random() < 0.3 else _NEW
        self._place = Place(name, "", instance_id, -1)
        self._must_join = True
        self._is_fenced = False
        """True once another process has replaced this static member."""

    async def live(self, topic: str, partitions: Sequence[int]) -> None:
        """Consume with the group until ``stopping`` is set, or until another process has replaced this member."""
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
        """Take part in a rebalance. Returns the partitions assigned to the member. Raises KafkaError if a request
        fails: the caller joins again later."""
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
        """Assign each partition to a random member, so that most rebalances move partitions."""
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
        """Leave the group. Like Kafka's consumer, the member tries only once, and a static member usually does not
        leave."""
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
        """Read the partitions and commit, until the group rebalances or ``stopping`` is set."""
        heartbeats = asyncio.ensure_future(self._send_heartbeats())
        try:
            await self._find_positions(topic, assigned)
            while not self.stopping and not self._must_join:
                for partition in assigned:
                    if not self._must_join and partition in self.positions:
                        await self.poll(topic, partition)
                if self.rng.random() < COMMIT_CHANCE:
                    await self._commit(topic)
                await self.pause(0.3)
            await self._commit(topic)
        finally:
            heartbeats.cancel()
            self._groups.releases(self.name)

    async def _find_positions(self, topic: str, assigned: Sequence[int]) -> None:
        self.positions = {}
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
                self._groups.begins(self._place, each.partition_index, self.begin_at(each))
            return

    async def _commit(self, topic: str) -> None:
        """Commit the positions. If the commit fails, the next commit includes them."""
        offsets = dict(self.positions)
        if not offsets or not self._place.member_id:
            return
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self._place.generation,
            member_id=self._place.member_id,
            group_instance_id=self._place.instance_id,
            topics=self.to_commit(topic, offsets),
        )

        place, outdated = self._place, self._groups.commits(self._place, offsets)
        try:
            await self._ask(request, commit_code)
        except KafkaError as error:
            self.ledger.history.trace(f"{self.name} commit: {error.code.name}")
            return
        self._groups.committed(place, offsets, outdated)

    # --- Requests ---

    async def _ask(self, request: Request, code_of: Callable[[Any], int], limit_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Send a request to the coordinator, and return the response. Raises KafkaError if there is no response or if
        it contains an error code."""
        place = self._place
        answer = await self.ask_coordinator(request, self._versions[type(request)], limit_s)
        code = ErrorCode(code_of(answer))
        if code is ErrorCode.NONE:
            return answer
        if code in _MUST_JOIN:
            self._lose_place(place, code)
        elif code is not ErrorCode.MEMBER_ID_REQUIRED:
            self.coordinator = None
        raise KafkaError(code)

    def _lose_place(self, place: Place, code: ErrorCode) -> None:
        """Make the member rejoin, because a request that it sent as ``place`` failed. If the group has removed the
        member, it joins as a new one."""
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
    """Return the partitions in a member's assignment. The assignment is empty if the leader did not know the member."""
    if not assignment:
        return ()
    decoded, _ = decode_stored(ConsumerProtocolAssignment, assignment)
    return tuple(partition for each in decoded.assigned_partitions for partition in each.partitions)
