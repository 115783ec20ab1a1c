"""How a shard executes decisions: turns, appends, replies, timers, and its end. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.broker.coordinators import shard as module
from parley.broker.coordinators.decision import Decision, ProducerIdentity, Timer
from parley.broker.coordinators.shard import Shard
from parley.broker.coordinators.waiting_replies import NotCommittedInTime
from parley.broker.metrics.catalogue.coordinators import CoordinatorMetrics
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.batch_header import read_header
from tests.broker.coordinators.shards import FakeLog, Values, now_ms, read, write
from tests.support.proportion import examples
from tests.support.virtual_time import VirtualTimeLoop, run

TIMEOUT_MS = 5_000


class Bench:
    """A shard over a log in memory."""

    def __init__(self, *, follows: bool = True, loaded_offset: int = 0) -> None:
        self.log = FakeLog(follows=follows)
        self.log.end_offset = loaded_offset
        self.state = Values()
        self.metrics = CoordinatorMetrics()
        self.lost: list[Shard[Values]] = []
        self.shard = Shard(
            self.log,
            self.state,
            loaded_offset=loaded_offset,
            now_ms=now_ms,
            timeout_ms=lambda: TIMEOUT_MS,
            metrics=self.metrics,
            on_lost=self.lost.append,
            facts={"topic": "__topic", "partition": 0},
        )


async def turn() -> None:
    """Let the shard take its turn."""
    for _ in range(3):
        await asyncio.sleep(0)


async def code_of(future: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> ErrorCode:
    try:
        await future
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_decisions_of_one_turn_see_each_other_and_share_one_append() -> None:
    async def scenario() -> None:
        bench = Bench()
        seen: list[bytes | None] = []

        def second(state: Values, now: int) -> Decision[str]:
            seen.append(state.values.get(b"k"))
            return Decision("two", [(b"k", b"2"), (b"l", None)])

        first = bench.shard.submit(write(b"k", b"1", "one"))
        answers = await asyncio.gather(first, bench.shard.submit(second), bench.shard.submit(read(b"k")))
        assert answers == ["one", "two", b"2"]
        assert seen == [b"1"]
        assert bench.log.rows() == [[(b"k", b"1"), (b"k", b"2"), (b"l", None)]]
        assert bench.state.offsets == [0, 1, 2], "the offsets that the records have in the log"

    run(scenario())


def test_replies_and_reads_of_unreplicated_state_wait_for_replication() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        first = bench.shard.submit(write(b"k", b"1", "one"))
        await turn()
        second = bench.shard.submit(write(b"k", b"2", "two"))
        reading = bench.shard.submit(read(b"k"))
        await turn()
        assert not first.done()
        bench.log.moves_to(1)
        await turn()
        assert (first.done(), second.done(), reading.done()) == (True, False, False)
        await asyncio.sleep(0.5)
        bench.log.moves_to(2)
        assert await asyncio.gather(second, reading) == ["two", b"2"]
        assert await bench.shard.submit(read(b"k")) == b"2", "nothing is left to wait for"
        assert bench.metrics.appends == 2
        assert bench.metrics.commit_time.total == 500_000, "microseconds"

    run(scenario())


def test_an_immediate_read_shows_only_replicated_state() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False, loaded_offset=7)
        assert bench.shard.read(read(b"k")) is None, "the replicas may lack what was loaded"
        bench.log.moves_to(7)
        writing = bench.shard.submit(write(b"k", b"1"))
        assert bench.shard.read(lambda state, now: Decision(list(state.values))) == [], "the write has not had its turn"
        await turn()
        assert bench.shard.read(read(b"k")) is None, "the replicas lack the write"
        bench.log.moves_to(8)
        assert bench.shard.read(read(b"k")) == b"1"
        await writing

        def refuse(state: Values, now: int) -> Decision[None]:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)

        with pytest.raises(KafkaError, match="INVALID_TXN_STATE"):
            bench.shard.read(refuse)
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
            bench.shard.read(read(b"k"))

    run(scenario())


def test_reads_after_loading_wait_for_the_replicas_too() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False, loaded_offset=7)
        reading = bench.shard.submit(read(b"k"))
        await turn()
        assert not reading.done()
        bench.log.moves_to(7)
        assert await reading is None

    run(scenario())


def test_an_error_of_a_decision_concerns_its_caller_alone(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(state: Values, now: int) -> Decision[None]:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)

    def defect(state: Values, now: int) -> Decision[None]:
        raise ZeroDivisionError

    async def scenario() -> None:
        bench = Bench()
        answers = [bench.shard.submit(decide) for decide in (refuse, write(b"k", b"1", "done"), defect)]
        assert await code_of(answers[0]) is ErrorCode.ILLEGAL_GENERATION
        assert await answers[1] == "done"
        assert await code_of(answers[2]) is ErrorCode.UNKNOWN_SERVER_ERROR

    run(scenario())
    assert [record.message for record in caplog.records] == ["a coordinator's decision failed"]


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_nothing_changes_if_the_log_cannot_be_written(problem: ErrorCode, expected: ErrorCode) -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.log.unwritable = problem
        stamp = ProducerIdentity(7, 0)
        marker = bench.shard.append_marker(7, 0, committed=True, coordinator_epoch=1)
        for writing in (bench.shard.submit(write(b"k", b"1")), bench.shard.submit(write(b"k", b"1", producer=stamp))):
            assert await code_of(writing) is expected
        assert await code_of(marker) is expected
        assert await bench.shard.submit(read(b"k")) is None, "reads go on"
        assert (bench.state.values, bench.log.batches) == ({}, [])

    run(scenario())


def test_an_append_that_fails_nevertheless_ends_the_shard(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.log.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        writing, reading = bench.shard.submit(write(b"k", b"1")), bench.shard.submit(read(b"k"))
        assert await code_of(writing) is ErrorCode.NOT_COORDINATOR
        assert await code_of(reading) is ErrorCode.NOT_COORDINATOR, "it would have shown what was not written"
        assert bench.lost == [bench.shard]
        assert bench.state.told == ["unloaded"]
        with pytest.raises(KafkaError):
            bench.shard.submit(read(b"k"))

    run(scenario())
    assert [record.message for record in caplog.records] == [
        "coordinator reloads a partition: its state may differ from the log"
    ]


@pytest.mark.parametrize("key", [b"poison", b"defect"])
def test_a_record_that_cannot_be_applied_live_ends_the_shard(key: bytes) -> None:
    async def scenario() -> None:
        bench = Bench()
        assert await code_of(bench.shard.submit(write(key, b"1"))) is ErrorCode.NOT_COORDINATOR
        assert bench.lost == [bench.shard]
        assert not bench.log.batches

    run(scenario())


@pytest.mark.parametrize(
    ("part", "decide"),
    [
        ("check_writable", read(b"k")),
        ("is_committed", read(b"k")),
        ("outcome", write(b"k", b"1")),
        ("append", write(b"k", b"1", producer=ProducerIdentity(7, 0))),
        ("", lambda state, now: Decision(None, timers={"t": cast("Timer", "no timer")})),
    ],
)
@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
def test_an_unexpected_error_in_a_turn_ends_the_shard(part: str, decide: Any, error: type[BaseException]) -> None:
    def fail(*args: Any, **more: Any) -> Any:
        raise error

    async def scenario() -> None:
        bench = Bench()
        setattr(bench.log, part, fail)
        deciding, queued = bench.shard.submit(decide), bench.shard.submit(read(b"k"))
        await turn()
        assert [await code_of(each) for each in (deciding, queued)] == [ErrorCode.NOT_COORDINATOR] * 2
        assert bench.lost == [bench.shard]

    run(scenario())


def test_a_state_that_fails_to_stop_does_not_keep_a_lost_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        bench = Bench()
        monkeypatch.setattr(bench.state, "unloaded", lambda: 1 // 0)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        bench.log.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        assert await code_of(bench.shard.submit(write(b"k", b"1"))) is ErrorCode.NOT_COORDINATOR
        assert bench.lost == [bench.shard]

    run(scenario())


def test_a_decision_that_meets_a_cancelled_future_fails_alone() -> None:
    def decide(state: Values, now: int) -> Decision[None]:
        raise asyncio.CancelledError

    async def scenario() -> None:
        bench = Bench()
        assert await code_of(bench.shard.submit(decide)) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert await bench.shard.submit(write(b"k", b"1", "done")) == "done"

    run(scenario())


def test_another_writer_ends_the_shard() -> None:
    async def scenario() -> None:
        bench = Bench()

        def intrude(state: Values, now: int) -> Decision[None]:
            bench.log.end_offset += 1
            return Decision(None, [(b"k", b"1")])

        assert await code_of(bench.shard.submit(intrude)) is ErrorCode.NOT_COORDINATOR
        assert bench.lost == [bench.shard]

    run(scenario())


def test_records_that_a_client_wrote_cost_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        bench = Bench()
        for number in range(3):
            bench.log.append(build([(0, 0, b"k", b"foreign", ())]))
            assert await bench.shard.submit(write(b"l", b"%d" % number, "done")) == "done"
        assert bench.lost == []
        assert bench.state.values == {b"l": b"2"}
        assert bench.state.offsets == [1, 3, 5], "the offsets that the records have in the log"

    run(scenario())
    assert [(record.message, record.__dict__["offset"]) for record in caplog.records] == [
        ("a client wrote to a coordinator's partition: these records take effect at the next load", 0)
    ]


def test_a_reply_that_waits_too_long_fails_and_the_state_stays() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        happened: list[str] = []
        began = asyncio.get_running_loop().time()
        with pytest.raises(NotCommittedInTime) as late:
            await bench.shard.submit(write(b"k", b"1", then=lambda: happened.append("effect")))
        assert late.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert asyncio.get_running_loop().time() - began == TIMEOUT_MS / 1000
        reading = bench.shard.submit(read(b"k"))
        await turn()
        assert not reading.done()
        assert not happened
        bench.log.moves_to(1)
        assert await reading == b"1"
        assert happened == ["effect"], "effects wait as long as it takes"

    run(scenario())


def test_replies_that_wait_too_long_fail_each_at_its_own_time() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)

        async def waited_s(after_s: float) -> float:
            await asyncio.sleep(after_s)
            began = asyncio.get_running_loop().time()
            with pytest.raises(NotCommittedInTime):
                await bench.shard.submit(write(b"k", b"1"))
            return asyncio.get_running_loop().time() - began

        assert await asyncio.gather(waited_s(0), waited_s(0.5)) == pytest.approx([TIMEOUT_MS / 1000] * 2)

    run(scenario())


def test_an_isr_that_became_too_small_fails_the_replies_and_effects_wait_until_it_grows() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        happened: list[str] = []
        writing = bench.shard.submit(write(b"k", b"1", then=lambda: happened.append("effect")))
        other = bench.shard.submit(write(b"l", b"1"))
        await turn()
        bench.log.fails_with(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        assert await code_of(writing) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await code_of(other) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.log.code = None
        bench.log.moves_to(2)
        assert happened == ["effect"]

    run(scenario())


def test_effects_of_a_lost_shard_do_not_happen() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        happened: list[str] = []
        writing = bench.shard.submit(write(b"k", b"1", then=lambda: happened.append("effect")))
        await turn()
        bench.log.fails_with(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await code_of(writing) is ErrorCode.NOT_COORDINATOR
        bench.log.code = None
        bench.log.moves_to(1)
        assert not happened

    run(scenario())


def test_a_closed_shard_fails_waiting_and_queued_requests() -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        waiting = bench.shard.submit(write(b"k", b"1"))
        await turn()
        queued = bench.shard.submit(read(b"k"))
        bench.shard.timers.set({"t": Timer(1, write(b"t", b"1"))})
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        assert await code_of(waiting) is ErrorCode.NOT_COORDINATOR
        assert await code_of(queued) is ErrorCode.NOT_COORDINATOR
        assert bench.state.told == ["unloaded"]
        assert not bench.log.subscribers
        await asyncio.sleep(60)
        assert b"t" not in bench.state.values

    run(scenario())


def test_batches_stay_below_the_limit_of_the_topic() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.log.batch_bytes_max = 300
        writes = [bench.shard.submit(write(b"%d" % i, bytes(80))) for i in range(5)]
        large = bench.shard.submit(write(b"large", bytes(300)))
        exact = bench.shard.submit(write(b"x", bytes(300 - 61 - 10)))
        await asyncio.gather(*writes, exact)
        assert await code_of(large) is ErrorCode.MESSAGE_TOO_LARGE
        assert b"large" not in bench.state.values
        assert [len(rows) for rows in bench.log.rows()] == [2, 2, 1, 1]
        assert max(map(len, bench.log.batches)) == 300
        assert bench.state.offsets == list(range(6))

    run(scenario())


def test_a_divisible_decision_is_written_in_as_many_batches_as_it_needs() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.log.batch_bytes_max = 300
        records = [(b"%d" % i, bytes(80)) for i in range(5)]
        before = bench.shard.submit(write(b"before", b""))
        divided = bench.shard.submit(lambda state, now_ms: Decision("done", records, is_divisible=True))
        after = bench.shard.submit(write(b"after", b""))
        assert await divided == "done"
        await asyncio.gather(before, after)
        assert [[key for key, _ in rows] for rows in bench.log.rows()] == [
            [b"before", b"0"],
            [b"1", b"2"],
            [b"3", b"4", b"after"],
        ]
        assert max(map(len, bench.log.batches)) <= 300
        assert bench.state.offsets == list(range(7))
        large = [*records, (b"large", bytes(300))]
        refused = bench.shard.submit(lambda state, now_ms: Decision(None, large, is_divisible=True))
        assert await code_of(refused) is ErrorCode.MESSAGE_TOO_LARGE
        assert bench.log.end_offset == 7, "none of its records is written"

    run(scenario())


def test_too_many_events_are_refused_and_a_long_queue_takes_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 5)
    monkeypatch.setattr(module, "EVENTS_PER_TURN", 2)

    async def scenario() -> None:
        bench = Bench(follows=False)
        writes = [bench.shard.submit(write(b"%d" % i, b"")) for i in range(5)]
        assert bench.shard.queued == 5
        for _ in range(2):
            with pytest.raises(KafkaError) as refused:
                bench.shard.submit(read(b"0"))
            assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await asyncio.sleep(0.001)  # they now wait for the replicas
        bench.log.moves_to(5)
        await asyncio.gather(*writes)
        assert [len(rows) for rows in bench.log.rows()] == [2, 2, 1]
        assert await bench.shard.submit(read(b"0")) == b""

    run(scenario())


def test_transactional_records_are_a_batch_of_their_own_until_their_marker() -> None:
    async def scenario() -> None:
        bench = Bench()
        stamp = ProducerIdentity(7, 3)
        submitted = [
            bench.shard.submit(write(b"a", b"1")),
            bench.shard.submit(write(b"b", b"2", producer=stamp)),
            bench.shard.submit(write(b"c", b"3")),
            bench.shard.append_marker(7, 3, committed=True, coordinator_epoch=1),
            bench.shard.submit(read(b"b")),
        ]
        assert (await asyncio.gather(*submitted))[-1] == b"2"
        headers = [read_header(batch) for batch in bench.log.batches]
        assert [(h.is_transactional, h.is_control) for h in headers] == [
            (False, False),
            (True, False),
            (False, False),
            (True, True),
        ]
        assert (headers[1].producer_id, headers[1].producer_epoch, headers[1].base_sequence) == (7, 3, -1)
        aborted = bench.shard.submit(write(b"b", b"9", producer=stamp))
        await bench.shard.append_marker(7, 3, committed=False, coordinator_epoch=1)
        await aborted
        assert bench.state.values == {b"a": b"1", b"b": b"2", b"c": b"3"}
        again = Values()
        bench.log.replay(again)
        assert (again.values, again.offsets) == (bench.state.values, bench.state.offsets)

    run(scenario())


def test_a_batch_or_a_marker_of_a_fenced_producer_is_refused_alone() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.log.failure = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
        fenced = bench.shard.submit(write(b"b", b"2", producer=ProducerIdentity(7, 3)))
        marker = bench.shard.append_marker(7, 3, committed=True, coordinator_epoch=1)
        reading = bench.shard.submit(read(b"b"))
        assert await code_of(fenced) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await code_of(marker) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await reading is None
        assert (bench.lost, bench.state.offsets) == ([], [])

    run(scenario())


def test_timers_take_effect_with_their_decision_and_can_be_replaced_and_cancelled() -> None:
    async def scenario() -> None:
        bench = Bench()

        def arm(delay_ms: int, value: bytes) -> Any:
            return write(b"armed", b"", timers={"t": Timer(delay_ms, write(b"fired", value))})

        await bench.shard.submit(arm(1_000, b"first"))
        await asyncio.sleep(0.5)
        await bench.shard.submit(arm(1_000, b"second"))
        await asyncio.sleep(0.9)
        assert b"fired" not in bench.state.values
        await asyncio.sleep(0.2)
        assert bench.state.values[b"fired"] == b"second"
        await bench.shard.submit(arm(1_000, b"third"))
        await bench.shard.submit(lambda state, now: Decision(None, timers={"t": None, "unknown": None}))
        bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS
        assert await code_of(bench.shard.submit(arm(1_000, b"fourth"))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(10)
        assert bench.state.values[b"fired"] == b"second"

    run(scenario())


def test_a_timer_that_cannot_write_tries_again() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.shard.timers.set({"t": Timer(1_000, write(b"fired", b"1"))})
        bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS
        await asyncio.sleep(3)
        assert not bench.state.values
        bench.log.unwritable = None
        await asyncio.sleep(1)
        assert bench.state.values == {b"fired": b"1"}
        assert len(bench.log.batches) == 1

    run(scenario())


def test_a_timer_forgives_a_busy_loop() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.shard.timers.set({"t": Timer(1_000, write(b"fired", b"1"))})
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.now += 6
        await turn()
        assert not bench.state.values, "requests that have arrived meanwhile come first"
        await asyncio.sleep(5.1)
        assert bench.state.values == {b"fired": b"1"}

    run(scenario())


def test_a_timer_fires_although_the_loop_stays_late() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.shard.timers.set({"t": Timer(1_000, write(b"fired", b"1"))})
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        for _ in range(3):
            loop.now += 6
            await turn()
        assert bench.state.values == {b"fired": b"1"}

    run(scenario())


def test_an_effect_that_fails_does_not_stop_the_shard(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        bench = Bench()
        assert await bench.shard.submit(write(b"k", b"1", "done", then=fail)) == "done"
        assert await bench.shard.submit(read(b"k")) == b"1"

    run(scenario())
    assert [record.message for record in caplog.records] == ["a coordinator's effect failed"]


keys = st.sampled_from([b"a", b"b", b"c"])
steps = st.one_of(
    st.tuples(st.just("write"), keys, st.none() | st.binary(max_size=3)),
    st.tuples(st.just("transaction"), keys, st.integers(0, 2)),
    st.tuples(st.just("marker"), st.booleans(), st.integers(0, 2)),
    st.tuples(st.just("pause"), st.none(), st.none()),
    st.tuples(st.just("replicate"), st.none(), st.none()),
    st.tuples(st.just("unwritable"), st.booleans(), st.none()),
)


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(steps, max_size=30))
def test_the_live_state_equals_the_replayed_log(script: list[tuple[str, Any, Any]]) -> None:
    async def scenario() -> None:
        bench = Bench(follows=False)
        submitted: list[asyncio.Future[Any]] = []
        for what, one, two in script:
            match what:
                case "write":
                    submitted.append(bench.shard.submit(write(one, two)))
                case "transaction":
                    submitted.append(bench.shard.submit(write(one, b"t", producer=ProducerIdentity(two, 0))))
                case "marker":
                    marker = bench.shard.append_marker(two, 0, committed=one, coordinator_epoch=0)
                    submitted.append(marker)
                case "pause":
                    await turn()
                case "replicate":
                    bench.log.moves_to(bench.log.end_offset)
                case "unwritable":
                    bench.log.unwritable = ErrorCode.NOT_ENOUGH_REPLICAS if one else None
        await turn()
        bench.log.moves_to(bench.log.end_offset)
        assert all(future.done() for future in submitted)
        await asyncio.gather(*submitted, return_exceptions=True)
        again = Values()
        assert bench.log.replay(again).skipped == 0
        assert vars(again) == vars(bench.state)

    run(scenario())
