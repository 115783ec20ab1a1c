"""Events that an idle shard decides as soon as they are submitted. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from parley.broker.coordinators.decision import Decision
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.coordinators.shards import Values, read, write
from tests.broker.coordinators.test_shard import Bench, code_of, turn
from tests.support.virtual_time import run


def test_an_idle_shard_decides_and_appends_while_the_event_is_submitted() -> None:
    async def scenario() -> None:
        bench = Bench()
        for number in range(3):
            writing = bench.shard.submit(write(b"k", b"%d" % number, "written"), at_once=True)
            assert (writing.done(), writing.result()) == (True, "written")
        assert bench.log.rows() == [[(b"k", b"%d" % number)] for number in range(3)]
        assert bench.shard.submit(read(b"k"), at_once=True).result() == b"2"

    run(scenario())


def test_the_reply_waits_for_the_replicas_all_the_same() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        writing = bench.shard.submit(write(b"k", b"1", "written"), at_once=True)
        reading = bench.shard.submit(read(b"k"), at_once=True)
        await turn()
        assert not writing.done() | reading.done()
        bench.log.moves_to(1)
        assert (writing.result(), reading.result()) == ("written", b"1")

    run(scenario())


def test_an_event_does_not_overtake_those_that_wait_for_their_turn() -> None:
    async def scenario() -> None:
        bench = Bench()
        first = bench.shard.submit(write(b"k", b"1", "one"))
        second = bench.shard.submit(read(b"k"), at_once=True)
        assert not second.done()
        assert await asyncio.gather(first, second) == ["one", b"1"]
        assert bench.shard.submit(read(b"k"), at_once=True).done()

    run(scenario())


@pytest.mark.parametrize("follows", [True, False], ids=["effect-in-a-turn", "effect-when-the-replicas-follow"])
def test_an_effect_may_submit_the_next_event(follows: bool) -> None:
    """The markers of a transaction are written then, and may be complete at once."""

    async def scenario() -> None:
        bench = Bench(follows=follows)
        order: list[str] = []
        submitted: dict[str, asyncio.Future[Any]] = {}

        def submit(name: str, then: Callable[[], None] | None = None) -> None:
            def decide(state: Values, now_ms: int) -> Decision[str]:
                order.append(f"decide {name}, {len(state.values)} known")
                return Decision(name, [(name.encode(), b"1")], then=then)

            order.append(f"submit {name}")
            submitted[name] = bench.shard.submit(decide, at_once=True)

        def effect() -> None:
            order.append("effect")
            submit("b")
            submit("c")
            order.append("effect ends")

        submit("a", effect)
        bench.log.follows = True
        bench.log.moves_to(bench.log.end_offset)
        await turn()
        assert {name: each.result() for name, each in submitted.items()} == {"a": "a", "b": "b", "c": "c"}
        appends = [[key for key, _ in rows] for rows in bench.log.rows()]
        assert appends == ([[b"a"], [b"b", b"c"]] if follows else [[b"a"], [b"b"], [b"c"]])
        decided = [each for each in order if each.startswith("decide")]
        assert decided == ["decide a, 0 known", "decide b, 1 known", "decide c, 2 known"]
        if follows:
            assert order.index("effect ends") < order.index(decided[1]), "one turn at a time"
        assert bench.shard.queued == 0

    run(scenario())


def test_a_decision_that_fails_leaves_the_shard_idle() -> None:
    async def scenario() -> None:
        bench = Bench()

        def refuse(state: Values, now_ms: int) -> Decision[None]:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)

        def defect(state: Values, now_ms: int) -> Decision[None]:
            raise ZeroDivisionError

        assert await code_of(bench.shard.submit(refuse, at_once=True)) is ErrorCode.INVALID_TXN_STATE
        assert await code_of(bench.shard.submit(defect, at_once=True)) is ErrorCode.UNKNOWN_SERVER_ERROR
        bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS
        refused = bench.shard.submit(write(b"k", b"1"), at_once=True)
        assert await code_of(refused) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.log.unwritable = None
        assert bench.shard.submit(write(b"k", b"1", "written"), at_once=True).result() == "written"
        assert not bench.lost

    run(scenario())


def test_a_shard_is_lost_while_an_event_is_submitted() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        waiting = bench.shard.submit(write(b"k", b"1"), at_once=True)
        bench.log.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        failing = bench.shard.submit(write(b"k", b"2"), at_once=True)
        assert bench.lost == [bench.shard]
        assert await code_of(failing) is await code_of(waiting) is ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
            bench.shard.submit(read(b"k"), at_once=True)

    run(scenario())
