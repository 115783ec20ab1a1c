"""Callers that wait for a later decision, and decisions that do not wait for their turn. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from parley.broker.coordinators.decision import Decision, Held, Timer
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.coordinators.shards import Values, write
from tests.broker.coordinators.test_shard import Bench, code_of, turn
from tests.support.virtual_time import run


def hold(key: str, **released: str) -> Callable[[Values, int], Decision[Any]]:
    replies: dict[Hashable, object] = dict(released.items())
    return lambda state, now_ms: Decision(Held(key), released=replies)


def release(**released: str) -> Callable[[Values, int], Decision[Any]]:
    replies: dict[Hashable, object] = dict(released.items())
    return lambda state, now_ms: Decision("released", released=replies)


def test_a_caller_waits_until_its_reply_is_released() -> None:
    async def scenario() -> None:
        bench = Bench()
        queued, at_once = bench.shard.submit(hold("a")), bench.shard.decide_at_once(hold("b"))
        assert isinstance(at_once, asyncio.Future)
        await turn()
        assert not queued.done() | at_once.done()
        assert bench.shard.decide_at_once(release(a="one", unknown="nothing")) == "released"
        assert await queued == "one"
        assert not at_once.done()
        assert await bench.shard.submit(release(a="too late", b="two")) == "released"
        assert await at_once == "two"

    run(scenario())


def test_a_decision_may_release_an_earlier_caller_and_hold_its_own_under_the_same_key() -> None:
    async def scenario() -> None:
        bench = Bench()
        first, second = bench.shard.submit(hold("a")), bench.shard.submit(hold("a", a="come again"))
        assert await first == "come again"
        bench.shard.decide_at_once(release(a="done"))
        assert await second == "done"

    run(scenario())


def test_replies_that_are_released_with_records_wait_for_the_replicas() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        held, failing = bench.shard.submit(hold("a")), bench.shard.submit(hold("b"))
        writing = bench.shard.submit(write(b"k", b"1", "written", released={"a": "stored"}))
        await turn()
        assert not held.done() | writing.done()
        bench.log.moves_to(1)
        assert (await held, await writing) == ("stored", "written")
        writing = bench.shard.submit(write(b"k", b"1", "written", released={"b": "stored"}))
        await turn()
        bench.log.fails_with(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await code_of(failing) is await code_of(writing) is ErrorCode.NOT_COORDINATOR

    run(scenario())


def test_a_decision_whose_caller_is_held_has_its_effect_when_the_replicas_have_its_records() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        effects: list[str] = []
        decision = Decision(Held("a"), [(b"k", b"1")], then=lambda: effects.append("written"))
        held: asyncio.Future[Any] = bench.shard.submit(lambda state, now_ms: decision)
        await turn()
        assert effects == []
        bench.log.moves_to(1)
        assert effects == ["written"]
        assert not held.done()
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        assert await code_of(held) is ErrorCode.NOT_COORDINATOR

    run(scenario())


def test_refused_records_change_nothing_and_another_decision_takes_their_place() -> None:
    async def scenario() -> None:
        bench = Bench()
        held, released = bench.shard.submit(hold("a")), bench.shard.submit(hold("b"))
        changes: list[str] = []

        def refused(state: Values, now_ms: int, error: KafkaError) -> Decision[None]:
            return Decision(None, released={"b": error.code.name}, change=lambda: changes.append("refused"))

        decide = write(
            b"k",
            b"1",
            released={"a": "stored", "b": "stored"},
            timers={"t": Timer(1, write(b"fired", b"1"))},
            change=lambda: changes.append("written"),
            refused=refused,
        )
        bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS
        assert await code_of(bench.shard.submit(decide)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await released == "COORDINATOR_NOT_AVAILABLE"
        assert changes == ["refused"]
        bench.log.unwritable = None
        await asyncio.sleep(1)
        assert (held.done(), bench.state.values) == (False, {})
        await bench.shard.submit(decide)
        assert await held == "stored"
        assert changes == ["refused", "written"]

    run(scenario())


def test_callers_that_are_held_fail_with_their_shard() -> None:
    async def scenario() -> None:
        bench = Bench()
        held = bench.shard.submit(hold("a"))
        await turn()
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        assert await code_of(held) is ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
            bench.shard.decide_at_once(release())

    run(scenario())


def test_a_decision_at_once_overtakes_the_queue_but_its_records_do_not() -> None:
    async def scenario() -> None:
        bench = Bench()
        seen: list[str] = []

        def note(name: str, *records: tuple[bytes, bytes]) -> Callable[[Values, int], Decision[str]]:
            def decide(state: Values, now_ms: int) -> Decision[str]:
                seen.append(name)
                return Decision(name, records)

            return decide

        queued = bench.shard.submit(note("queued"))
        assert bench.shard.decide_at_once(note("at once")) == "at once"
        writing = bench.shard.decide_at_once(note("writing", (b"k", b"1")))
        assert isinstance(writing, asyncio.Future)
        assert bench.state.values == {}
        assert await asyncio.gather(queued, writing) == ["queued", "writing"]
        assert seen == ["at once", "writing", "queued", "writing"], "it decides again in its turn"

    run(scenario())


def test_the_effect_of_an_immediate_decision_waits_for_replication() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        writing = bench.shard.submit(write(b"k", b"1", "written"))
        await turn()
        effects: list[str] = []
        decision = Decision("seen", then=lambda: effects.append("effect"))
        seen = bench.shard.decide_at_once(lambda state, now_ms: decision)
        assert isinstance(seen, asyncio.Future)
        await turn()
        assert (seen.done(), effects) == (False, [])
        bench.log.moves_to(1)
        assert (await writing, await seen, effects) == ("written", "seen", ["effect"])

    run(scenario())
