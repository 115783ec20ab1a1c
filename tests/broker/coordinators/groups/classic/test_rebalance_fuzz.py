"""Clients that follow the group protocol are disturbed at random. The group must stay consistent and become stable."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from parley.broker.coordinators.groups.classic.membership import GroupState
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import JoinGroupResponse
from tests.broker.coordinators.groups.classic.test_member_decisions import SESSION_MS, Bench
from tests.support.proportion import examples
from tests.support.virtual_time import run


class Robot:
    """A client that joins, gets its assignment, sends heartbeats, and rejoins when it has to."""

    def __init__(self, bench: Bench, name: str, rng: Random) -> None:
        self.bench = bench
        self.name = name
        self.rng = rng
        self.member_id = ""
        self.generation = -1
        self.assignment = b""
        self.seen: list[tuple[int, bytes]] = []
        self.protocols = {"range": name.encode(), "sticky": b""}

    async def live(self) -> None:
        while True:
            await self._join()

    async def _join(self) -> None:
        try:
            joined: JoinGroupResponse = await self.bench.join(self.member_id, version=4, protocols=self.protocols)
        except KafkaError as error:
            if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            await asyncio.sleep(0.1)
            return
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return
        if joined.error_code != ErrorCode.NONE:
            self.member_id = "" if joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID else self.member_id
            await asyncio.sleep(0.1)
            return
        await asyncio.sleep(self.rng.random() * 2)
        parts = {member.member_id: member.metadata + b"@%d" % joined.generation_id for member in joined.members}
        try:
            synced = await self.bench.sync(joined, parts)
        except KafkaError as error:
            if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            return
        if synced.error_code != ErrorCode.NONE:
            return
        self.generation, self.assignment = joined.generation_id, synced.assignment
        self.seen.append((self.generation, self.assignment))
        await self._beat(joined)

    async def _beat(self, joined: JoinGroupResponse) -> None:
        while True:
            await asyncio.sleep(SESSION_MS / 3000)
            code = self.bench.heartbeat(joined)
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            if code != ErrorCode.NONE:
                return


disturbance = st.sampled_from(["start", "kill", "leave", "change", "writes fail", "writes succeed", "wait"])


@settings(deadline=None, max_examples=examples(120))
@given(st.lists(st.tuples(disturbance, st.integers(0, 20)), max_size=25), st.integers())
def test_the_group_becomes_stable(script: list[tuple[str, int]], seed: int) -> None:
    run(_play(script, Random(seed)))


async def _play(script: list[tuple[str, int]], rng: Random) -> None:
    bench = await Bench.begin(**{"group.initial.rebalance.delay.ms": "500"})
    robots: dict[str, tuple[Robot, asyncio.Task[None]]] = {}
    started = 0
    highest = 0
    for what, pause in [("start", 0), *script]:
        if what == "start":
            started += 1
            robot = Robot(bench, f"r{started}", rng)
            robots[robot.name] = robot, asyncio.ensure_future(robot.live())
        elif what in ("kill", "leave") and robots:
            robot, task = robots.pop(rng.choice(sorted(robots)))
            task.cancel()
            if what == "leave":
                await bench.leave(robot.member_id)
        elif what == "change" and robots:
            robots[rng.choice(sorted(robots))][0].protocols = {"sticky": b"changed", "range": b"changed"}
        elif what == "writes fail":
            bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS
        elif what == "writes succeed":
            bench.log.unwritable = None
        await asyncio.sleep(pause)
        assert bench.group.generation >= highest, "a generation never comes back"
        highest = bench.group.generation
    bench.log.unwritable = None
    await asyncio.sleep(600)
    _at_rest(bench, [robot for robot, _ in robots.values()])
    for _, task in robots.values():
        task.cancel()
    bench.groups.runtime.resign_all()


def _at_rest(bench: Bench, robots: list[Robot]) -> None:
    group = bench.group
    assert set(group.members) == {robot.member_id for robot in robots}, "exactly the living are members"
    assert group.state is (GroupState.STABLE if robots else GroupState.EMPTY)
    for robot in robots:
        assert robot.generation == group.generation
        assert robot.assignment == group.assignments[robot.member_id]
        assert robot.assignment.endswith(b"@%d" % group.generation), "no member acts on another generation's assignment"
        generations = [generation for generation, _ in robot.seen]
        assert generations == sorted(generations)
