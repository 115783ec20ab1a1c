"""The classic group protocol, step by step, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from parley.broker.coordinators.groups.classic.membership import GroupState, Membership
from parley.broker.coordinators.groups.classic.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from parley.broker.coordinators.groups.classic.responses import code_for_members
from parley.broker.coordinators.groups.group_records import decode_generation
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.offset_decisions import Committer
from parley.broker.network.request_context import ConnectedClient, RequestContext
from parley.broker.security.session import anonymous
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.broker.coordinators.groups.grouped import Coordinated
from tests.broker.coordinators.shards import FakeLog
from tests.support.virtual_time import VirtualTimeLoop, run

SESSION_MS = 10_500
REBALANCE_MS = 60_500
Join = JoinGroupRequest.JoinGroupRequestProtocol


class Bench:
    """A coordinator with one group, and requests as a client sends them."""

    def __init__(self, coordinated: Coordinated, shard: GroupShard, group_id: str = "g") -> None:
        self.group_id = group_id
        self.coordinated = coordinated
        self.groups = coordinated.groups
        self.shard = shard

    @classmethod
    async def begin(cls, **properties: str) -> Bench:
        """Return a bench whose shard is loaded."""
        coordinated = Coordinated(properties={"group.initial.rebalance.delay.ms": "0"} | properties)
        return cls(coordinated, await coordinated.begin())

    @property
    def group(self) -> Membership:
        return self.shard.membership_of(self.group_id)

    @property
    def log(self) -> FakeLog:
        return self.coordinated.log

    def stored(self) -> list[tuple[int, dict[str, bytes]]]:
        """Return the generations in the log with their assignments."""
        found = [decode_generation(value) for _, value in self.coordinated.written() if value is not None]
        return [(each.generation, {m.member_id: m.assignment for m in each.members}) for each in found]

    def due(self, *key: str) -> float:
        """Return the time at which a timer is due."""
        return self.groups.runtime._active("g").timers._running[key].alarm.at

    @staticmethod
    def now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 3,
        instance: str | None = None,
        protocols: dict[str, bytes] | None = None,
        rebalance_ms: int = REBALANCE_MS,
        session_ms: int = SESSION_MS,
    ) -> asyncio.Future[JoinGroupResponse]:
        """Send a JoinGroup; returns a future in any case."""
        offered = {"range": b"meta"} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[Join(name=name, metadata=data) for name, data in offered.items()],
        )
        context = RequestContext(11, version, 1, "client", ConnectedClient(anonymous("127.0.0.1", "PLAINTEXT"), 5), 0.0)
        return _future(lambda: self.groups.join(context, request))

    def sync(
        self, joined: JoinGroupResponse, assignments: dict[str, bytes] | None = None
    ) -> asyncio.Future[SyncGroupResponse]:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=m, assignment=a)
                for m, a in (assignments or {}).items()
            ],
        )
        return _future(lambda: self.groups.sync(request))

    def heartbeat(self, joined: JoinGroupResponse, instance: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=instance,
        )
        try:
            return self.groups.heartbeat(request)
        except KafkaError as error:
            return error.code

    async def leave(self, member_id: str, instance: str | None = None) -> ErrorCode:
        leaving = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance)
        try:
            codes = self.groups.leave(self.group_id, [leaving])
            return (await codes if isinstance(codes, asyncio.Future) else codes)[0]
        except KafkaError as error:
            return error.code

    async def stable(self, count: int) -> list[JoinGroupResponse]:
        """Return the members of a stable group of this size, the leader first."""
        joins = [self.join()]
        first = await joins[0]
        while len(joins) < count:
            joins.append(self.join())
            joins[0] = self.join(first.member_id)
            for i in range(1, len(joins) - 1):
                joins[i] = self.join((await joins[i]).member_id)
            done = await asyncio.gather(*joins)
        done = await asyncio.gather(*joins)
        leader, *others = sorted(done, key=lambda joined: joined.member_id != joined.leader)
        syncs = [self.sync(other) for other in others]
        syncs.append(self.sync(leader, {joined.member_id: joined.member_id.encode() for joined in done}))
        for answer in await asyncio.gather(*syncs):
            assert answer.error_code == ErrorCode.NONE
        assert self.group.state is GroupState.STABLE
        return [leader, *others]


def _future(call: Callable[[], Any]) -> asyncio.Future[Any]:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    try:
        answer = call()
    except KafkaError as error:
        done.set_exception(error)
        return done
    if isinstance(answer, asyncio.Future):
        return answer
    done.set_result(answer)
    return done


def _code(call: Callable[[], None]) -> ErrorCode:
    try:
        call()
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def code_of(answer: Awaitable[Any]) -> ErrorCode:
    try:
        return ErrorCode((await answer).error_code)
    except KafkaError as error:
        return error.code


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in virtual time."""

    @wraps(test)
    def wrapped(**parameters: Any) -> None:
        run(test(**parameters))

    return wrapped


@virtual
async def test_members_share_a_generation_and_get_their_own_assignment() -> None:
    bench = await Bench.begin()
    leader, follower = await bench.stable(2)
    assert leader.generation_id == follower.generation_id
    assert {member.member_id for member in leader.members} == {leader.member_id, follower.member_id}
    assert [member.metadata for member in leader.members] == [b"meta", b"meta"]
    assert follower.members == []
    for joined in (leader, follower):
        assert (await bench.sync(joined)).assignment == joined.member_id.encode()
    assert bench.groups.metrics().rebalances == 1
    generation, assignments = bench.stored()[-1]
    assert generation == leader.generation_id
    assert set(assignments) == {leader.member_id, follower.member_id}


@virtual
async def test_the_first_rebalance_waits_for_more_members() -> None:
    bench = await Bench.begin(**{"group.initial.rebalance.delay.ms": "3000"})
    began = bench.now_ms()
    joins = [bench.join()]
    await asyncio.sleep(2)
    joins.append(bench.join())
    await asyncio.sleep(3)  # the first delay was over after 3 s; a member that joined meanwhile prolongs it by as much
    joins.append(bench.join())
    done = await asyncio.gather(*joins)
    assert {joined.generation_id for joined in done} == {1}
    assert bench.now_ms() - began == 9000


@virtual
async def test_a_new_member_gets_its_id_first() -> None:
    bench = await Bench.begin()
    refused = await bench.join(version=4)
    assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert refused.member_id.startswith("client-")
    assert not bench.group.members
    joined = await bench.join(refused.member_id, version=4)
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id == refused.member_id


@virtual
async def test_errors_name_no_protocol_since_version_7() -> None:
    bench = await Bench.begin()
    assert [(await bench.join(version=version)).protocol_name for version in (6, 7, 8)] == ["", None, None]


@virtual
async def test_an_id_that_is_not_used_expires() -> None:
    bench = await Bench.begin()
    refused = await bench.join(version=4)
    await asyncio.sleep(SESSION_MS / 1000 - 0.001)
    assert bench.group.pending
    await asyncio.sleep(0.002)
    assert not bench.group.pending
    assert bench.groups.find("g") is None, "nothing is left of the group"
    assert await code_of(bench.join(refused.member_id, version=4)) == ErrorCode.UNKNOWN_MEMBER_ID


@virtual
async def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    bench = await Bench.begin()
    leader, silent = await bench.stable(2)
    for _ in range(5):
        await asyncio.sleep(SESSION_MS / 3000)
        bench.heartbeat(leader)
    assert bench.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(silent) == ErrorCode.UNKNOWN_MEMBER_ID
    again = await bench.join(leader.member_id)
    assert again.generation_id == leader.generation_id + 1
    assert len(again.members) == 1


@virtual
async def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    bench = await Bench.begin()
    leader, slow = await bench.stable(2)

    async def beat() -> None:
        code = ErrorCode.NONE
        while code != ErrorCode.UNKNOWN_MEMBER_ID:
            await asyncio.sleep(3)
            code = bench.heartbeat(slow)

    beating = asyncio.ensure_future(beat())
    began = bench.now_ms()
    again = await bench.join(leader.member_id)
    assert bench.now_ms() - began == REBALANCE_MS
    assert len(again.members) == 1
    await beating


@virtual
async def test_a_new_member_waits_for_a_rebalance_no_longer_than_five_minutes() -> None:
    bench = await Bench.begin()
    old = await bench.join(rebalance_ms=3_600_000)
    await bench.sync(old, {old.member_id: b"all"})
    newcomer = bench.join()
    began = bench.now_ms()
    while not newcomer.done():
        await asyncio.sleep(3)
        bench.heartbeat(old)  # it is alive, and takes the hour that it may take to rejoin
    assert await code_of(newcomer) == ErrorCode.UNKNOWN_MEMBER_ID
    assert NEW_MEMBER_JOIN_TIMEOUT_MS <= bench.now_ms() - began <= NEW_MEMBER_JOIN_TIMEOUT_MS + 3000
    assert list(bench.group.members) == [old.member_id]


@virtual
async def test_a_member_that_rejoined_may_wait_longer_than_its_session() -> None:
    bench = await Bench.begin()
    leader = await bench.join(rebalance_ms=3_600_000)
    await bench.sync(leader, {leader.member_id: b"all"})
    newcomer = bench.join()
    leader, follower = await asyncio.gather(bench.join(leader.member_id, rebalance_ms=3_600_000), newcomer)
    waiting = bench.join(follower.member_id, protocols={"range": b"other topics"})
    for _ in range(200):
        await asyncio.sleep(3)
        bench.heartbeat(leader)
    assert follower.member_id in bench.group.members
    assert not waiting.done()


@virtual
async def test_a_member_that_does_not_sync_is_removed() -> None:
    bench = await Bench.begin()
    first = await bench.join()
    second = bench.join()
    again = await bench.join(first.member_id)
    follower = await second
    waiting = bench.sync(follower)  # the leader never syncs
    began = bench.now_ms()
    assert (await waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.now_ms() - began == min(SESSION_MS, REBALANCE_MS), "the silent leader's session ended first"
    assert again.member_id not in bench.group.members


@virtual
async def test_a_live_member_that_never_asks_for_its_assignment_is_removed_after_the_rebalance_timeout() -> None:
    bench = await Bench.begin()
    long_ms = 10 * REBALANCE_MS
    first = await bench.join(session_ms=long_ms)
    second = bench.join(session_ms=long_ms)
    leader, follower = await asyncio.gather(bench.join(first.member_id, session_ms=long_ms), second)
    waiting = bench.sync(follower)  # the leader never syncs
    began = bench.now_ms()
    assert (await waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.now_ms() - began == REBALANCE_MS
    assert list(bench.group.members) == [follower.member_id]
    assert bench.heartbeat(leader) == ErrorCode.UNKNOWN_MEMBER_ID


@virtual
async def test_leaving_rebalances_at_once() -> None:
    bench = await Bench.begin()
    leader, follower = await bench.stable(2)
    assert await bench.leave(follower.member_id) == ErrorCode.NONE
    assert await bench.leave(follower.member_id) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert (await bench.join(leader.member_id)).generation_id == leader.generation_id + 1


@virtual
async def test_the_last_to_leave_empties_the_group_durably() -> None:
    bench = await Bench.begin()
    (only,) = await bench.stable(1)
    assert await bench.leave(only.member_id) == ErrorCode.NONE
    await asyncio.sleep(0)
    assert bench.group.state is GroupState.EMPTY
    assert bench.stored()[-1] == (only.generation_id + 1, {})


@virtual
async def test_a_follower_that_joins_again_gets_the_same_response_and_the_leader_a_rebalance() -> None:
    bench = await Bench.begin()
    leader, follower = await bench.stable(2)
    assert (await bench.join(follower.member_id)).generation_id == leader.generation_id
    assert bench.group.state is GroupState.STABLE
    rejoin = bench.join(leader.member_id)
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert (await asyncio.gather(rejoin, bench.join(follower.member_id)))[0].generation_id == leader.generation_id + 1


@virtual
async def test_a_follower_with_other_metadata_causes_a_rebalance() -> None:
    bench = await Bench.begin()
    leader, follower = await bench.stable(2)
    bench.join(follower.member_id, protocols={"range": b"other topics"})
    assert bench.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


@virtual
async def test_the_protocol_that_all_support_is_chosen_by_vote() -> None:
    bench = await Bench.begin()
    first = await bench.join(protocols={"range": b"", "sticky": b"", "old": b""})
    joins = [
        bench.join(protocols={"sticky": b"", "range": b""}),
        bench.join(protocols={"sticky": b"", "range": b""}),
        bench.join(first.member_id, protocols={"range": b"", "sticky": b"", "old": b""}),
    ]
    assert {joined.protocol_name for joined in await asyncio.gather(*joins)} == {"sticky"}
    assert await code_of(bench.join(protocols={"old": b""})) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@virtual
async def test_stale_requests_get_the_error_that_fits() -> None:
    bench = await Bench.begin()
    leader, _ = await bench.stable(2)
    stale = JoinGroupResponse(
        error_code=0,
        generation_id=leader.generation_id - 1,
        protocol_name="",
        leader="",
        member_id=leader.member_id,
        members=[],
    )
    stranger = JoinGroupResponse(
        error_code=0, generation_id=leader.generation_id, protocol_name="", leader="", member_id="x", members=[]
    )
    assert bench.heartbeat(stale) == ErrorCode.ILLEGAL_GENERATION
    assert bench.heartbeat(stranger) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await code_of(bench.sync(stale)) == ErrorCode.ILLEGAL_GENERATION
    assert await code_of(bench.join("x")) == ErrorCode.UNKNOWN_MEMBER_ID


@virtual
async def test_a_full_group_refuses_new_members() -> None:
    bench = await Bench.begin(**{"group.max.size": "2"})
    await bench.stable(2)
    assert await code_of(bench.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED


@virtual
async def test_ids_that_were_given_out_count_as_members_until_they_join() -> None:
    bench = await Bench.begin(**{"group.max.size": "2"})
    first, second = [(await bench.join(version=4)).member_id for _ in range(2)]
    assert await code_of(bench.join(version=4)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    joins = [bench.join(first, version=4), bench.join(second, version=4)]
    assert [await code_of(join) for join in joins] == [ErrorCode.NONE] * 2
    assert not bench.group.pending
    assert await code_of(bench.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED


@virtual
async def test_requests_that_cannot_be_from_a_member_are_refused() -> None:
    bench = await Bench.begin()
    (only,) = await bench.stable(1)
    given_out = (await bench.join(version=4)).member_id
    for join, expected in (
        (bench.join(protocols={}), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (bench.join(protocols={"other": b""}), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (bench.join(given_out, instance="i", version=5), ErrorCode.UNKNOWN_MEMBER_ID),
        (bench.join(only.member_id, instance="i", version=5), ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert await code_of(join) == expected
    assert await bench.leave(given_out) == ErrorCode.NONE
    assert not bench.group.pending
    assert await bench.leave("", "i") == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.heartbeat(only) == ErrorCode.NONE
    bench.groups.runtime.resign_all()
    assert await code_of(bench.join()) == ErrorCode.NOT_COORDINATOR
    assert await bench.leave(only.member_id) == ErrorCode.NOT_COORDINATOR


@virtual
async def test_a_static_member_leaves_by_its_instance_id_alone() -> None:
    bench = await Bench.begin()
    joined = await bench.join(instance="i1", version=5)
    assert await bench.leave("x", "i1") == ErrorCode.FENCED_INSTANCE_ID
    assert await bench.leave("", "i1") == ErrorCode.NONE
    assert joined.member_id not in bench.group.members
    assert not bench.group.static_ids


@virtual
async def test_a_sync_that_names_another_protocol_is_refused() -> None:
    bench = await Bench.begin()
    (only,) = await bench.stable(1)
    for kind, name, expected in (
        ("consumer", "range", ErrorCode.NONE),
        (None, None, ErrorCode.NONE),
        ("connect", "range", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("consumer", "other", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ):
        request = SyncGroupRequest(
            group_id="g",
            generation_id=only.generation_id,
            member_id=only.member_id,
            protocol_type=kind,
            protocol_name=name,
            assignments=[],
        )
        assert await code_of(_future(lambda request=request: bench.groups.sync(request))) == expected  # type: ignore[misc]


@virtual
async def test_a_first_rebalance_waits_no_longer_than_its_members_may_take() -> None:
    bench = await Bench.begin(**{"group.initial.rebalance.delay.ms": "2500"})
    joins = [bench.join(rebalance_ms=6_500)]
    began = bench.now_ms()
    for _ in range(5):
        await asyncio.sleep(2)
        if not joins[0].done():
            joins.append(bench.join(rebalance_ms=6_500))
    assert (await joins[0]).generation_id == 1
    await asyncio.gather(*joins)
    assert len(bench.group.members) == 4
    assert bench.group.state_since_ms - began == 6_500


@virtual
async def test_one_member_waits_for_others_once() -> None:
    bench = await Bench.begin(**{"group.initial.rebalance.delay.ms": "2500"})
    began = bench.now_ms()
    await bench.join()
    assert bench.now_ms() - began == 2_500


@virtual
async def test_a_static_member_that_returns_takes_its_old_assignment() -> None:
    bench = await Bench.begin()
    joined = await bench.join(instance="i1", version=5)
    await bench.sync(joined, {joined.member_id: b"all"})
    back = await bench.join(instance="i1", version=9)
    assert back.error_code == ErrorCode.NONE
    assert back.generation_id == joined.generation_id, "no rebalance"
    assert back.member_id != joined.member_id
    assert back.skip_assignment
    assert back.leader == back.member_id
    assert (await bench.sync(back)).assignment == b"all"
    assert bench.heartbeat(joined, instance="i1") == ErrorCode.FENCED_INSTANCE_ID


@virtual
async def test_a_static_member_that_returns_during_a_rebalance_joins_the_next_generation() -> None:
    bench = await Bench.begin()
    joined = await bench.join(instance="i1", version=5)
    assert bench.group.state is GroupState.COMPLETING_REBALANCE
    back = await bench.join(instance="i1", version=9)
    assert back.generation_id == joined.generation_id + 1
    assert not back.skip_assignment


@virtual
@pytest.mark.parametrize("version", [8, 9])
async def test_only_a_client_that_can_skip_the_assignment_learns_that_it_leads(version: int) -> None:
    bench = await Bench.begin()
    joined = await bench.join(instance="i1", version=5)
    await bench.sync(joined, {joined.member_id: b"all"})
    back = await bench.join(instance="i1", version=version)
    assert back.skip_assignment == (back.leader == back.member_id) == (version == 9)


@virtual
async def test_an_old_client_that_returns_as_leader_does_not_learn_that_it_leads() -> None:
    bench = await Bench.begin()
    joined = await bench.join(instance="i1", version=5)
    await bench.sync(joined, {joined.member_id: b"all"})
    back = await bench.join(instance="i1", version=5)
    assert back.leader == joined.member_id
    assert back.members == []


@virtual
async def test_a_static_member_that_is_replaced_learns_later_of_a_rebalance_that_began_meanwhile() -> None:
    bench = await Bench.begin(**{"group.initial.rebalance.delay.ms": "1000"})
    joined, other = await asyncio.gather(bench.join(instance="i1", version=5), bench.join())
    await asyncio.gather(bench.sync(joined, {other.member_id: b"all"}), bench.sync(other))
    bench.log.follows = False
    back = bench.join(instance="i1", version=9)
    await asyncio.sleep(0)
    newcomer = bench.join()
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert not back.done(), "the replicas do not have its new id"
    bench.log.moves_to(bench.log.end_offset)
    assert (await back).generation_id == joined.generation_id
    assert bench.heartbeat(await back, instance="i1") == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = bench.join((await back).member_id, instance="i1", version=9)
    bench.join(other.member_id)
    assert (await rejoined).generation_id == (await newcomer).generation_id == joined.generation_id + 1


@virtual
async def test_a_replacement_that_cannot_be_stored_does_not_happen() -> None:
    bench = await Bench.begin()
    joined = await bench.join(instance="i1", version=5)
    await bench.sync(joined, {joined.member_id: b"all"})
    bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS
    assert await code_of(bench.join(instance="i1", version=9)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(bench.group.members) == [joined.member_id]
    assert bench.heartbeat(joined, instance="i1") == ErrorCode.NONE
    bench.log.unwritable = None
    assert (await bench.join(instance="i1", version=9)).generation_id == joined.generation_id


@virtual
async def test_a_static_member_stays_through_a_rebalance_it_misses() -> None:
    bench = await Bench.begin()
    static = await bench.join(instance="i1", version=5)
    await bench.sync(static, {static.member_id: b"all"})
    other = bench.join()

    async def beat() -> None:
        while not other.done():
            bench.heartbeat(static, instance="i1")
            await asyncio.sleep(3)

    await beat()
    assert static.member_id in bench.group.members
    assert (await other).leader == (await other).member_id


@virtual
async def test_a_rebalance_that_no_member_joins_does_not_busy_the_loop() -> None:
    bench = await Bench.begin()
    static = await bench.join(instance="i1", version=5, rebalance_ms=0)
    await bench.sync(static, {static.member_id: b"all"})
    newcomer = bench.join(rebalance_ms=0)
    assert await bench.leave(next(id for id in bench.group.members if id != static.member_id)) == ErrorCode.NONE
    assert await code_of(newcomer) == ErrorCode.UNKNOWN_MEMBER_ID
    for _ in range(10):
        await asyncio.sleep(0)
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert bench.due("rebalance", "g") >= asyncio.get_running_loop().time() + 1
    await asyncio.sleep(SESSION_MS / 1000 + 1)
    assert bench.group.state is GroupState.EMPTY, "its session is over"


@virtual
async def test_the_session_timeout_serves_as_rebalance_timeout_only_if_the_request_has_none() -> None:
    bench = await Bench.begin()
    waits_not = await bench.join(rebalance_ms=0)
    assert bench.group.members[waits_not.member_id].rebalance_timeout_ms == 0
    await bench.leave(waits_not.member_id)
    old_client = await bench.join(version=0, rebalance_ms=-1)
    assert bench.group.members[old_client.member_id].rebalance_timeout_ms == SESSION_MS


@virtual
async def test_a_session_timeout_of_zero_does_not_busy_the_loop() -> None:
    bench = await Bench.begin()
    joined = await bench.join(session_ms=0)
    assert bench.due("session", "g", joined.member_id) > asyncio.get_running_loop().time()


@virtual
async def test_members_wait_for_an_assignment_that_takes_long_to_store() -> None:
    bench = await Bench.begin()
    joined = await bench.join(rebalance_ms=1000)
    bench.log.follows = False
    synced = bench.sync(joined, {joined.member_id: b"all"})
    await asyncio.sleep(2)
    bench.log.moves_to(bench.log.end_offset)
    assert (await synced).assignment == b"all"
    assert bench.group.state is GroupState.STABLE


@virtual
async def test_heartbeats_that_arrived_while_the_loop_was_blocked_count() -> None:
    bench = await Bench.begin()
    alive, dead = await bench.stable(2)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.now += 60  # far beyond every session
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.heartbeat(alive) == ErrorCode.NONE, "read from the socket only now"
    await asyncio.sleep(SESSION_MS / 1000 + 1)
    assert dead.member_id not in bench.group.members, "silence after it counts as ever"


@virtual
async def test_a_member_that_rejoined_while_the_loop_was_blocked_is_not_removed() -> None:
    bench = await Bench.begin()
    leader, follower = await bench.stable(2)
    again = bench.join(leader.member_id)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.now += REBALANCE_MS / 1000 + 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done = await asyncio.gather(again, bench.join(follower.member_id))
    assert {joined.error_code for joined in done} == {ErrorCode.NONE}
    assert len(bench.group.members) == 2


@virtual
async def test_two_processes_of_one_static_member_fence_each_other() -> None:
    bench = await Bench.begin()
    first = bench.join(instance="i1", version=5)
    done = await first
    waiting = bench.sync(done)
    await asyncio.sleep(0)
    answer = bench.join(instance="i1", version=5)
    # The first process has led the generation. A later one with the same instance id takes its place.
    assert (await waiting).error_code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.NONE)
    assert (await answer).member_id in bench.group.members
    assert done.member_id not in bench.group.members


@virtual
async def test_the_waiting_request_of_a_replaced_process_gets_an_error_that_its_version_can_express() -> None:
    bench = await Bench.begin(**{"group.initial.rebalance.delay.ms": "1000"})
    waiting = bench.join(instance="i1", version=5)
    bench.join(instance="i1", version=9)
    fenced = await waiting
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert fenced.protocol_name is not None, "which versions below 7 do not have"


@virtual
async def test_an_assignment_that_cannot_be_stored_is_not_sent() -> None:
    bench = await Bench.begin(**{"group.initial.rebalance.delay.ms": "1000"})
    members = await asyncio.gather(bench.join(), bench.join())
    leader, follower = sorted(members, key=lambda joined: joined.member_id != joined.leader)
    bench.log.unwritable = ErrorCode.NOT_LEADER_OR_FOLLOWER
    waiting = bench.sync(follower)
    assert await code_of(bench.sync(leader, {leader.member_id: b"x"})) == ErrorCode.NOT_COORDINATOR
    assert await code_of(waiting) == ErrorCode.NOT_COORDINATOR
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert bench.stored() == []


@virtual
async def test_the_members_join_again_if_the_replicas_are_slow_to_store_their_assignment() -> None:
    bench = await Bench.begin(**{"offsets.commit.timeout.ms": "3000"})
    joined = await bench.join()
    bench.log.follows = False
    with pytest.raises(KafkaError) as caught:
        await bench.sync(joined, {joined.member_id: b"x"})
    assert code_for_members(caught.value) is ErrorCode.REBALANCE_IN_PROGRESS
    again = bench.sync(joined)
    await asyncio.sleep(1)
    assert not again.done(), "no member gets an assignment that may be lost"
    bench.log.moves_to(bench.log.end_offset)
    assert (await again).assignment == b"x"


@virtual
async def test_the_last_member_stays_while_an_empty_group_cannot_be_stored() -> None:
    bench = await Bench.begin()
    (only,) = await bench.stable(1)
    bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS
    assert await bench.leave(only.member_id) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await asyncio.sleep(2 * SESSION_MS / 1000)
    assert list(bench.group.members) == [only.member_id], "its session is over, but that cannot be stored either"
    bench.log.unwritable = None
    await asyncio.sleep(1)
    assert bench.group.state is GroupState.EMPTY
    assert bench.stored()[-1] == (only.generation_id + 1, {})


@virtual
async def test_members_whose_assignment_is_being_stored_learn_later_of_a_rebalance_that_began_meanwhile() -> None:
    bench = await Bench.begin()
    joined = await bench.join()
    bench.log.follows = False
    waiting = bench.sync(joined, {joined.member_id: b"old"})
    await asyncio.sleep(0)
    newcomer = bench.join()
    assert bench.group.state is GroupState.PREPARING_REBALANCE
    assert not waiting.done(), "the replicas do not have it"
    bench.log.moves_to(bench.log.end_offset)
    assert (await waiting).assignment == b"old", "the assignment of its generation"
    assert bench.heartbeat(joined) == ErrorCode.REBALANCE_IN_PROGRESS
    again, _ = await asyncio.gather(bench.join(joined.member_id), newcomer)
    assert again.generation_id == joined.generation_id + 1
    assert bench.group.assignments == {}


@virtual
async def test_waiting_members_of_an_abandoned_group_get_an_error() -> None:
    bench = await Bench.begin()
    leader, follower = await bench.stable(2)
    waiting = bench.join(leader.member_id)
    bench.groups.runtime.resign_all()
    assert await code_of(waiting) == ErrorCode.NOT_COORDINATOR
    assert bench.heartbeat(follower) == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("member_id", "generation", "expected"),
    [
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("stranger", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("member", 0, ErrorCode.ILLEGAL_GENERATION),
        ("member", 2, ErrorCode.NONE),
    ],
)
def test_which_members_may_commit(member_id: str, generation: int, expected: ErrorCode) -> None:
    async def scenario() -> None:
        bench = await Bench.begin()
        leader, _ = await bench.stable(2)
        known = leader.member_id if member_id == "member" else member_id
        assert leader.generation_id == 2
        committer = Committer("g", known, None, generation)
        assert _code(lambda: bench.groups.check_commit(committer)) == expected

    run(scenario())


@virtual
async def test_a_long_client_id_makes_no_long_member_id() -> None:
    bench = await Bench.begin()
    joined = await bench.join(instance="i" * 32_000, version=5)
    assert len(joined.member_id) < 300, "an id must fit into the answers and records of the whole group"
