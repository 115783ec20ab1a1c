"""A worker's membership in its group, by the classic group protocol (protocol type "connect").

``Group`` keeps the membership: it joins, lets the herder assign the work if this worker leads, passes the assignment to
the herder, sends heartbeats, and joins again on request. ``Alone`` is the group of a standalone worker. Rules:

1. The herder (``Member``) is called in order: ``on_assigned`` of one generation ends before the next join.
2. If the membership is lost (the session has expired, the broker no longer knows the member, the coordinator did not
   respond for ``session.timeout.ms``), ``on_lost`` is called: other workers may run this work from now on.
3. Temporary errors are retried forever, after a pause. Permanent errors (a group of another type has this name, the
worker is not authorized) end ``Group.run`` with ConnectError.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from parley.pipeline.connect.distributed.protocol import (
    PROTOCOL_TYPE,
    PROTOCOLS,
    Assignment,
    MemberState,
    decode_assignment,
    decode_member,
    encode_assignment,
    encode_member,
)
from parley.pipeline.connect.errors import ConnectError
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage, check_code
from parley.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from parley.protocol.security.client_security import ClientSecurity

_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0
_LEAVE_SECONDS: Final = 3.0
_FATAL: Final = frozenset(
    {
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    }
)
_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID})
_log = logging.getLogger(__name__)


class Member(Protocol):
    """The callbacks from the group to the herder."""

    def member_state(self) -> MemberState:
        """Return this worker's state, which the leader needs to assign the work."""
        ...

    async def before_join(self, version: int | None) -> None:
        """Prepare to join the group again. ``version`` is the protocol's version in the last generation: with 0, all
        work must stop.

        It is None if the worker has no membership, and therefore no work.
        """
        ...

    def share_out(self, members: Mapping[str, MemberState], leader: str, version: int) -> Mapping[str, Assignment]:
        """Return the assignment of each member. Called only if this worker leads.

        ``members`` contains the members' states by member id, including this worker's, whose member id is ``leader``.
        ``version`` is the protocol's version.
        """
        ...

    async def on_assigned(self, assignment: Assignment, member_id: str, generation: int, version: int) -> None:
        """Accept this worker's assignment in a new generation. ``version`` is the protocol's version."""
        ...

    async def on_lost(self) -> None:
        """Stop all work, because the membership is lost: other workers may run this work from now on."""
        ...


class Membership(ABC):
    """This worker's membership in the group of workers that share the connectors and tasks."""

    @abstractmethod
    async def run(self, member: Member) -> None:
        """Keep the membership until cancelled. Then leave the group. Raises ConnectError after a permanent error."""

    @abstractmethod
    def rejoin(self, after_s: float = 0.0) -> None:
        """Join again after ``after_s`` seconds, which starts a rebalance."""


class Alone(Membership):
    """The group of a standalone worker, which has all work."""

    def __init__(self) -> None:
        self._wanted = asyncio.Event()

    async def run(self, member: Member) -> None:
        version, name = 1, "alone"
        generation = 0
        while True:
            self._wanted.clear()
            generation += 1
            share = member.share_out({name: member.member_state()}, name, version)[name]
            await member.on_assigned(share, name, generation, version)
            await self._wanted.wait()

    def rejoin(self, after_s: float = 0.0) -> None:
        _after(after_s, self._wanted)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a membership. Times are in ms, names as in Kafka's worker configuration."""

    group_id: str
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    heartbeat_interval_ms: int = 3_000
    protocol: str = "sessioned"
    """The newest protocol that this worker offers. It also offers all older protocols."""

    @property
    def protocols(self) -> list[str]:
        """The offered protocols, the newest first."""
        return [name for name, version in reversed(PROTOCOLS.items()) if version <= PROTOCOLS[self.protocol]]


@dataclass(frozen=True, slots=True)
class _Place:
    """What a worker knows of its membership after it has joined: the broker that coordinates the group, the worker's
    member id, the generation, and the version of the protocol."""

    coordinator: int
    member_id: str
    generation: int
    version: int


class Group(Membership):
    """A membership that the cluster's group coordinator manages, as for Kafka's distributed workers."""

    def __init__(self, bootstrap: str, settings: GroupSettings, *, client_id: str, security: ClientSecurity) -> None:
        self._settings = settings
        self._client = Client(bootstrap, client_id=client_id, security=security)
        self._member_id = ""
        self._place: _Place | None = None
        self._rejoin = asyncio.Event()

    def rejoin(self, after_s: float = 0.0) -> None:
        _after(after_s, self._rejoin)

    async def run(self, member: Member) -> None:
        """Keep the membership until cancelled, then leave the group. Raises ConnectError after a permanent error."""
        try:
            await self._keep(member)
        finally:
            with suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._leave()
            await self._client.close()

    async def _keep(self, member: Member) -> None:
        pause = _PAUSE_S
        reached = asyncio.get_running_loop().time()
        while True:
            try:
                await member.before_join(None if self._place is None else self._place.version)
                self._rejoin.clear()  # this join serves all requests until now
                place, assignment = await self._join(member)
                self._place, pause = place, _PAUSE_S
                await self._live(member, place, assignment)
                reached = asyncio.get_running_loop().time()
                continue
            except KafkaError as error:
                if error.code in _FATAL:
                    raise ConnectError(f"group '{self._settings.group_id}' cannot be joined: {error}") from error
                if error.code in _LOST:
                    await self._lose(member)
                _log.warning("group %s: %s; the worker tries again", self._settings.group_id, error)
            if asyncio.get_running_loop().time() - reached > self._settings.session_timeout_ms / 1000:
                await self._lose(member)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)

    async def _lose(self, member: Member) -> None:
        self._member_id = ""
        if self._place is not None:
            self._place = None
            await member.on_lost()

    # Joining.

    async def _join(self, member: Member) -> tuple[_Place, Assignment]:
        coordinator = await self._client.coordinator(self._settings.group_id)
        answer = await self._join_group(member, coordinator)
        name = answer.protocol_name or ""
        if name not in PROTOCOLS:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group has chosen an unknown protocol: {name!r}"
            )
        version = PROTOCOLS[name]
        place = _Place(coordinator, answer.member_id, answer.generation_id, version)
        shares: Mapping[str, Assignment] = {}
        if answer.leader == answer.member_id:
            members = {one.member_id: _member(one.metadata) for one in answer.members}
            shares = member.share_out(members, answer.leader, version)
        return place, await self._sync(place, name, shares)

    async def _join_group(self, member: Member, coordinator: int) -> JoinGroupResponse:
        settings = self._settings
        while True:
            state = member.member_state()
            offered = [
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=encode_member(state, PROTOCOLS[name]))
                for name in settings.protocols
            ]
            request = JoinGroupRequest(
                group_id=settings.group_id,
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.rebalance_timeout_ms,
                member_id=self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=offered,
            )
            limit = settings.rebalance_timeout_ms / 1000 + 5
            answer: JoinGroupResponse = await self._client.send(request, node=coordinator, timeout=limit)
            if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                check_code(answer.error_code, "JoinGroup")
                self._member_id = answer.member_id
                return answer
            self._member_id = answer.member_id

    async def _sync(self, place: _Place, name: str, shares: Mapping[str, Assignment]) -> Assignment:
        assignments = [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member, assignment=encode_assignment(share, place.version)
            )
            for member, share in shares.items()
        ]
        request = SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=place.generation,
            member_id=place.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=name,
            assignments=assignments,
        )
        limit = self._settings.rebalance_timeout_ms / 1000 + 5
        answer = await self._client.send(request, node=place.coordinator, timeout=limit)
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "another member joined in the meantime")
        check_code(answer.error_code, "SyncGroup")
        try:
            return decode_assignment(answer.assignment)
        except MalformedMessage as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the leader's assignment: {error}") from error

    # Heartbeats.

    async def _live(self, member: Member, place: _Place, assignment: Assignment) -> None:
        """Accept the assignment, and send heartbeats until the worker must join again. Raises KafkaError if a heartbeat
        fails permanently.
        """
        beating = asyncio.create_task(self._beat(place))
        try:
            await member.on_assigned(assignment, place.member_id, place.generation, place.version)
            again = asyncio.create_task(self._rejoin.wait())
            try:
                await asyncio.wait({beating, again}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                again.cancel()
            if beating.done():
                beating.result()
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError, KafkaError):
                await beating

    async def _beat(self, place: _Place) -> None:
        """Send heartbeats until a rebalance begins.

        Raises KafkaError(UNKNOWN_MEMBER_ID) if the group has removed the worker, or if the coordinator cannot be
        reached for a whole session timeout.
        """
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while True:
            await asyncio.sleep(self._settings.heartbeat_interval_ms / 1000)
            request = HeartbeatRequest(
                group_id=self._settings.group_id, generation_id=place.generation, member_id=place.member_id
            )
            try:
                limit = self._settings.session_timeout_ms / 1000
                answer = await self._client.send(request, node=place.coordinator, timeout=limit)
                if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                    return
                check_code(answer.error_code, "Heartbeat")
                heard = loop.time()
            except KafkaError as error:
                if error.code in _LOST or loop.time() - heard > self._settings.session_timeout_ms / 1000:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_MEMBER_ID, f"the worker has lost its membership: {error}"
                    ) from error
                with suppress(KafkaError):
                    moved = await self._client.coordinator(self._settings.group_id)
                    place = _Place(moved, place.member_id, place.generation, place.version)

    async def _leave(self) -> None:
        if not self._member_id or self._place is None:
            return
        version = await self._client.version_for(LeaveGroupRequest, node=self._place.coordinator)
        if version < 3:
            request = LeaveGroupRequest(group_id=self._settings.group_id, member_id=self._member_id)
        else:
            leaving = LeaveGroupRequest.MemberIdentity(member_id=self._member_id, reason="the worker stops")
            request = LeaveGroupRequest(group_id=self._settings.group_id, members=[leaving])
        await self._client.send(request, node=self._place.coordinator)


def _after(seconds: float, event: asyncio.Event) -> None:
    if seconds > 0:
        asyncio.get_running_loop().call_later(seconds, event.set)
    else:
        event.set()


def _member(metadata: Any) -> MemberState:
    """Return the state in a member's metadata. A member whose metadata cannot be read is treated as having no work."""
    try:
        return decode_member(bytes(metadata))
    except MalformedMessage as error:
        _log.warning("the metadata of a member of the group cannot be read: %s", error)
        return MemberState("", -1)
