"""Any order of requests, timeouts, refused appends, slow replicas and elections: one group's members and its shard.

The coordinator runs over a log in memory, in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.classic.membership import GroupState, Membership
from parley.broker.coordinators.groups.group_records import decode_generation, group_record
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from tests.broker.coordinators.groups.classic.test_member_decisions import REBALANCE_MS, SESSION_MS, Bench
from tests.broker.coordinators.groups.grouped import empty_shard
from tests.broker.coordinators.groups.test_group_shard import lasting
from tests.broker.coordinators.test_shard import turn
from tests.support.proportion import examples
from tests.support.virtual_time import VirtualTimeLoop

SETTLED = (GroupState.STABLE, GroupState.EMPTY)
EXPECTED = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
clients = st.integers(0, 3)


@dataclass
class GroupClient:
    """A client, and its knowledge of its place in the group. Client 0 is a static member."""

    instance: str | None
    member_id: str = ""
    joined: JoinGroupResponse | None = None
    synced_in: int = -1

    def rejoin(self, code: ErrorCode) -> None:
        """React to an error. Only some errors invalidate the member id."""
        self.joined = None
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""


@dataclass
class Waiting:
    """A request without a response yet."""

    number: int
    future: asyncio.Future[Any]
    take: Callable[[Any], None]


@dataclass
class Term:
    """The responses to clients while the shard was loaded, from one load to the next."""

    leaders: dict[int, int] = field(default_factory=dict)
    """The number of the client that leads a generation."""
    highest: int = 0


class ClassicGroup(RuleBasedStateMachine):
    """A group of up to four clients, and a coordinator whose log fails."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        properties = {"group.initial.rebalance.delay.ms": "500", "group.max.size": "3"}
        self.bench = self.runner.run(Bench.begin(**properties))
        self.clients = [GroupClient("i" if number == 0 else None) for number in range(4)]
        self.waiting: list[Waiting] = []
        self.term = Term()
        self.epoch = 1
        self.syncs = 0
        self.values: list[tuple[Membership, str]] = []

    def do(self, call: Callable[[], Any] = lambda: None, seconds: float = 0.0) -> Any:
        """Call a function on the loop, let the shard take its turn, and collect the responses."""

        async def step() -> Any:
            result = call()
            await turn()
            if seconds:
                await asyncio.sleep(seconds)
            await self.load()
            return result

        result = self.runner.run(step())
        done = [each for each in self.waiting if each.future.done()]
        self.waiting = [each for each in self.waiting if not each.future.done()]
        for each in done:
            error = each.future.exception()
            if error is None:
                each.take(each.future.result())
            else:
                assert isinstance(error, KafkaError)
                assert error.code in EXPECTED
                if each.number >= 0:
                    self.clients[each.number].rejoin(error.code)
        return result

    async def load(self) -> None:
        """Wait until the shard is loaded."""
        runtime = self.bench.groups.runtime
        await runtime.until_loaded(60)
        shard = runtime.state_of(0)
        if shard is not self.bench.shard:
            self.bench.shard = shard
            self.term = Term()

    # --- Requests ---

    @initialize(rounds=st.integers(0, 4))
    def begin(self, rounds: int) -> None:
        for _ in range(rounds):
            self.all_proceed([0, 1, 2])

    @rule(order=st.lists(clients, min_size=1, max_size=4, unique=True))
    def all_proceed(self, order: list[int]) -> None:
        """Clients do what their last response tells them to do."""
        for number in order:
            self.proceed(number)
        self.do(seconds=0.5)

    @rule(number=clients)
    def proceed(self, number: int) -> None:
        client = self.clients[number]
        if any(each.number == number for each in self.waiting):
            return
        if client.joined is None:
            self.join(number, 9, "range sticky")
        elif client.synced_in != client.joined.generation_id:
            self.sync(number)
        else:
            self.heartbeat(number)

    @rule(number=clients, version=st.sampled_from([3, 5, 9]), protocols=st.sampled_from(["range", "range sticky"]))
    def join(self, number: int, version: int, protocols: str) -> None:
        client = self.clients[number]
        offered = dict.fromkeys(protocols.split(), b"")
        instance = client.instance if version >= 5 else None

        def take(response: JoinGroupResponse) -> None:
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = response.member_id
            elif response.error_code == ErrorCode.NONE:
                client.member_id, client.joined, client.synced_in = response.member_id, response, -1
                assert response.protocol_name in offered
                if response.members:
                    assert self.term.leaders.setdefault(response.generation_id, number) == number
            else:
                assert response.error_code in EXPECTED
                client.rejoin(ErrorCode(response.error_code))

        request = partial(self.bench.join, client.member_id, version=version, instance=instance, protocols=offered)
        self.send(number, request, take)

    @rule(number=clients)
    def sync(self, number: int) -> None:
        client = self.clients[number]
        joined = client.joined
        if joined is None:
            return
        self.syncs += 1
        parts = {each.member_id: b"%d@%d" % (self.syncs, joined.generation_id) for each in joined.members}

        def take(response: SyncGroupResponse) -> None:
            assert response.error_code in EXPECTED | {ErrorCode.NONE}
            if response.error_code != ErrorCode.NONE:
                client.rejoin(ErrorCode(response.error_code))
                return
            client.synced_in = joined.generation_id
            stored = [given for number, given in self.bench.stored() if number == joined.generation_id]
            assert any(response.assignment in given.values() for given in stored), "what the log has, no other one"
            assert not response.assignment or response.assignment.endswith(b"@%d" % joined.generation_id)

        self.send(number, lambda: self.bench.sync(joined, parts), take)

    def send(self, number: int, request: Callable[[], asyncio.Future[Any]], take: Callable[[Any], None]) -> None:
        self.do(lambda: self.waiting.append(Waiting(number, request(), take)))

    @rule(number=clients)
    def heartbeat(self, number: int) -> None:
        client = self.clients[number]
        joined = client.joined
        if joined is None:
            return
        code = self.do(lambda: self.bench.heartbeat(joined, client.instance))
        assert code in EXPECTED | {ErrorCode.NONE}
        if code is not ErrorCode.NONE:
            client.rejoin(code)

    @rule(number=clients)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        member_id = client.member_id
        self.send(number, lambda: asyncio.ensure_future(self.bench.leave(member_id)), lambda code: None)
        client.rejoin(ErrorCode.UNKNOWN_MEMBER_ID)

    @rule(number=clients)
    def restart(self, number: int) -> None:
        """A client's process dies, and another one begins without its member id."""
        self.clients[number].rejoin(ErrorCode.UNKNOWN_MEMBER_ID)

    # --- Time, and faults ---

    @rule(ms=st.sampled_from([1, 500, 3_000, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, ms: int) -> None:
        self.do(seconds=ms / 1000)

    @rule(refuses=st.booleans())
    def log_refuses(self, refuses: bool) -> None:
        self.bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS if refuses else None

    @rule(follow=st.booleans())
    def replicas(self, follow: bool) -> None:
        def change() -> None:
            self.bench.log.follows = follow
            if follow:
                self.bench.log.moves_to(self.bench.log.end_offset)

        self.do(change)

    @rule()
    def an_append_fails(self) -> None:
        """The log fails although it seemed writable. State and log differ, so the shard is loaded again."""

        def write() -> None:
            self.bench.log.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
            record = group_record("other", Membership(generation=1))
            writing = self.bench.groups.runtime.submit("g", lambda shard, now_ms: Decision(None, [record]))
            self.waiting.append(Waiting(-1, writing, lambda reply: None))

        def heal() -> None:
            self.bench.log.failure = None

        self.do(write)
        self.do(heal)

    @rule()
    def another_election(self) -> None:
        self.epoch += 1
        self.do(lambda: self.bench.groups.runtime.on_elected(0, self.epoch))

    # --- What must hold ---

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.bench.group.generation >= self.term.highest
        self.term.highest = self.bench.group.generation

    @invariant()
    def who_is_held_waits_and_no_other(self) -> None:
        group = self.bench.group
        held = set(self.bench.groups.runtime._active("g")._held)
        waiting = {("join", "g", each) for each in group.joining} | {("sync", "g", each) for each in group.syncing}
        assert held == waiting
        assert group.joining | group.syncing | group.new <= group.members.keys()
        assert not group.joining or group.state is GroupState.PREPARING_REBALANCE
        assert not group.syncing or group.state is GroupState.COMPLETING_REBALANCE

    @invariant()
    def something_ends_every_wait(self) -> None:
        group = self.bench.group
        needed: set[Any] = {("session", "g", each) for each in group.members}
        needed |= {("pending", "g", each) for each in group.pending}
        if group.state is GroupState.PREPARING_REBALANCE:
            needed.add(("rebalance", "g"))
        if group.state is GroupState.COMPLETING_REBALANCE:
            needed.add(("sync", "g"))
        running = self.bench.groups.runtime._active("g").timers._running
        assert needed <= running.keys()

    @invariant()
    def the_state_equals_its_log(self) -> None:
        again = empty_shard()
        assert self.bench.log.replay(again).skipped == 0
        assert lasting(again) == lasting(self.bench.shard)
        again.loaded(0)
        group, restored = self.bench.group, again.membership_of("g")
        if group.state in SETTLED and (group.generation or restored.generation):
            stored = again.groups["g"].stored
            assert stored is not None
            value = group_record("g", group)[1]
            assert value is not None
            assert decode_generation(value) == stored
            assert group_record("g", restored)[1] == value

    @invariant()
    def memberships_are_values(self) -> None:
        for membership, before in self.values:
            assert repr(membership) == before, "a decision changes a copy"
        self.values = [*self.values[-3:], (self.bench.group, repr(self.bench.group))]

    def teardown(self) -> None:
        """Check that every request gets its response, at the latest when the log works again."""

        def heal() -> None:
            log = self.bench.log
            log.unwritable, log.failure, log.follows = None, None, True
            log.moves_to(log.end_offset)

        try:
            self.do(heal, seconds=3_600)
            assert not self.waiting
            assert self.bench.group.state is GroupState.EMPTY
            assert not self.bench.group.members
            assert not self.bench.group.pending
        finally:
            self.runner.close()


TestClassicGroup = ClassicGroup.TestCase
TestClassicGroup.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
