"""ShareFetch and ShareAcknowledge at the leader: sessions, acquisition, acknowledgements, waits, failures."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from parley.broker.api.share_fetch import acknowledging, handler, pending_share_fetch, render
from parley.broker.api.share_fetch.handler import ACKNOWLEDGED_IN_A_TURN
from parley.broker.api.share_fetch.sessions import TopicPartition
from parley.broker.replication.partition import Isolation
from parley.broker.runtime import steps
from parley.broker.security.authorization import Authorization
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.broker.share.acknowledgements import ACCEPT, GAP, REJECT, RELEASE, RENEW
from parley.broker.share.leading import WRITE_AGAIN_S, LedSharePartition
from parley.broker.share.share_partition import Limits
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import headers
from tests.broker.api.authorization.test_guards import AllBut
from tests.broker.api.bench import OTHER, batch
from tests.broker.share.members import GROUP, LOCK_S, ShareBench
from tests.support.virtual_time import run


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def test_records_are_delivered_once_each(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        for _ in range(3):
            bench.write("t", 10)
        one, two = bench.member("one", topic), bench.member("two", topic)
        first = await one.fetch(max_wait_ms=1000, max_records=15)
        data = first.responses[0].partitions[0]
        assert [(each.first_offset, each.last_offset) for each in data.acquired_records] == [(0, 19)]
        sent = [each.base_offset for _, each in headers(cast(bytes, data.records))]
        assert sent == [0, 10], "batches without acquired records are not sent"
        assert first.acquisition_lock_timeout_ms == LOCK_S * 1000
        assert await two.acquired() == [(20, 29, 1)]
        assert await one.acquired((0, 19, [ACCEPT])) == []
        assert await two.acknowledge((20, 29, [ACCEPT])) == 0
        assert bench.persister.start[GROUP, topic, 0] == 30

    run(scenario())


def test_released_records_go_to_others_and_rejected_ones_to_none(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 6)
        one, two = bench.member("one", topic), bench.member("two", topic)
        assert await one.acquired(max_wait_ms=1000) == [(0, 5, 1)]
        types = [ACCEPT, RELEASE, REJECT, RELEASE, RELEASE, GAP]
        assert await one.acknowledge((0, 5, types)) == 0
        assert await two.acquired() == [(1, 1, 2), (3, 4, 2)]
        assert await two.acknowledge((1, 1, [ACCEPT]), (3, 4, [ACCEPT])) == 0
        assert bench.persister.start[GROUP, topic, 0] == 6

    run(scenario())


def test_a_fetch_waits_for_appended_and_for_released_records(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        one, two = bench.member("one", topic), bench.member("two", topic)
        waiting = one.begin_fetch(max_wait_ms=60_000)
        while bench.share.waiting.waiting == 0 or not all(led.is_active for led in bench.share):
            await bench.idle()
        bench.write("t", 2)
        response = await waiting
        assert [each.last_offset for each in response.responses[0].partitions[0].acquired_records] == [1]
        waiting = two.begin_fetch(max_wait_ms=60_000)
        await bench.idle()
        assert not waiting.done()
        assert await one.acknowledge((0, 0, [ACCEPT]), (1, 1, [RELEASE])) == 0
        response = await waiting
        data = response.responses[0].partitions[0].acquired_records
        assert [(each.first_offset, each.last_offset, each.delivery_count) for each in data] == [(1, 1, 2)]

    run(scenario())


def test_a_lock_ends_unless_it_is_renewed(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        one, two = bench.member("one", topic), bench.member("two", topic)
        assert await one.acquired(max_wait_ms=1000) == [(0, 3, 1)]
        assert await two.acquired(max_wait_ms=20_000) == []
        assert await one.acknowledge((2, 3, [RENEW]), is_renew_ack=True) == 0
        assert await two.acquired(max_wait_ms=60_000) == [(0, 1, 2)]
        assert bench.share.metrics.lock_timeouts == 2
        assert await one.acknowledge((2, 3, [ACCEPT])) == 0
        assert await one.acknowledge((0, 0, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE

    run(scenario())


def test_a_renewed_lock_has_the_duration_of_now(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        one, two = bench.member("one", topic), bench.member("two", topic)
        assert await one.acquired(max_wait_ms=1000) == [(0, 3, 1)]
        bench.settings = replace(bench.settings, lock_duration_ms=LOCK_S * 500)
        assert await one.acknowledge((0, 3, [RENEW]), is_renew_ack=True) == 0
        assert await two.acquired(max_wait_ms=LOCK_S * 500 + 1) == [(0, 3, 2)]

    run(scenario())


def test_a_group_may_forbid_to_renew_locks(directory: Path) -> None:
    """The error is that of Apache Kafka 4.3.1."""

    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        one = bench.member("one", topic)
        assert await one.acquired(max_wait_ms=1000) == [(0, 3, 1)]
        bench.settings = replace(bench.settings, may_renew=False)
        assert await one.acknowledge((0, 3, [RENEW]), is_renew_ack=True) == ErrorCode.INVALID_RECORD_STATE
        assert await one.acknowledge((0, 3, [ACCEPT])) == 0

    run(scenario())


def test_records_that_fail_are_delivered_apart_and_at_last_archived(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 8)
        one = bench.member("one", topic)
        sizes = [[] for _ in range(6)]  # type: list[list[int]]
        acquired = await one.acquired(max_wait_ms=1000)
        while acquired:
            sizes[acquired[0][2]].append(sum(last - first + 1 for first, last, _ in acquired))
            assert await one.acknowledge(*((first, last, [RELEASE]) for first, last, _ in acquired)) == 0
            acquired = await one.acquired()
        assert sizes[1:] == [[8], [8], [8], [4, 4], [1] * 8]
        assert bench.persister.start[GROUP, topic, 0] == 8

    run(scenario())


def test_the_window_and_the_record_limit_are_kept(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        bench.settings = replace(bench.settings, limits=Limits(10, 5))
        topic = await bench.create("t")
        for _ in range(4):
            bench.write("t", 4)
        one, two = bench.member("one", topic), bench.member("two", topic)
        assert await one.acquired(max_wait_ms=1000, max_records=3, share_acquire_mode=1) == [(0, 2, 1)]
        assert await two.acquired(max_records=100) == [(3, 9, 1)], "the window has ten records"
        assert await two.acquired() == []
        assert await one.acknowledge((0, 2, [ACCEPT])) == 0
        assert await one.acquired(max_records=1) == [(10, 11, 1)], "the rest of the batch is acquired with its record"

    run(scenario())


def test_records_of_a_leaving_member_become_available_and_count_as_delivered(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        one, two, three = (bench.member(name, topic) for name in ("one", "two", "three"))
        assert await one.acquired(max_wait_ms=1000) == [(0, 3, 1)]
        assert await two.acquired() == []
        assert await one.acknowledge((0, 0, [ACCEPT]), epoch=-1) == 0
        assert await two.acquired() == [(1, 3, 2)]
        with pytest.raises(KafkaError) as error:
            await one.acknowledge((1, 1, [ACCEPT]), epoch=1)
        assert error.value.code is ErrorCode.SHARE_SESSION_NOT_FOUND
        assert await three.acquired() == []
        two.disconnect()
        assert await three.acquired(max_wait_ms=1000) == [(1, 3, 3)]
        assert bench.share.metrics.disconnected == 1
        three.disconnect()
        while list(bench.share):
            await bench.idle()
        assert len(bench.api.sessions) == 0, "nothing stays of a group without members"

    run(scenario())


def test_a_client_that_has_disconnected_acquires_nothing(directory: Path) -> None:
    """Its fetch still waits. Records that it acquired would be locked for nothing."""

    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        one, two = bench.member("one", topic), bench.member("two", topic)
        assert await two.acquired(max_wait_ms=1000) == []
        waiting = one.begin_fetch(max_wait_ms=60_000)
        await bench.idle()
        one.disconnect()
        bench.write("t", 2)
        await waiting
        assert await two.acquired() == [(0, 1, 1)]

    run(scenario())


def test_a_session_that_is_too_large_ends_and_its_records_go_to_others(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        one, two = bench.member("one", topic), bench.member("two", topic)
        assert await one.acquired(max_wait_ms=1000) == [(0, 3, 1)]
        with monkeypatch.context() as patch:
            patch.setattr("parley.broker.api.share_fetch.sessions.PARTITIONS_MAX", 0)
            with pytest.raises(KafkaError) as error:
                await one.fetch(epoch=0)
        assert error.value.code is ErrorCode.INVALID_REQUEST
        assert await two.acquired(max_wait_ms=1000) == [(0, 3, 2)]

    run(scenario())


def test_a_group_whose_state_was_deleted_begins_again(directory: Path) -> None:
    """A member that the group has forgotten may still have a session."""

    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        one = bench.member("one", topic)
        assert await one.acquired(max_wait_ms=1000, max_records=2, share_acquire_mode=1) == [(0, 1, 1)]
        await one.acknowledge((0, 0, [ACCEPT]))
        bench.persister.refuse = KafkaError(ErrorCode.INVALID_REQUEST, "not initialized")
        assert await one.acknowledge((1, 1, [ACCEPT])) == ErrorCode.UNKNOWN_SERVER_ERROR
        bench.persister.forget()
        assert await one.acquired(max_wait_ms=1000) == [(0, 3, 1)]

    run(scenario())


def test_a_fetch_waits_until_the_group_has_initialized_its_state(directory: Path) -> None:
    """A member may fetch before, because its group has only just subscribed to the topic."""

    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        one = bench.member("one", topic)
        bench.persister.refuse = KafkaError(ErrorCode.INVALID_REQUEST, "not initialized")
        assert await one.acquired(max_wait_ms=500) == []
        bench.persister.refuse = None
        assert await one.acquired(max_wait_ms=5000) == [(0, 3, 1)]

    run(scenario())


def test_a_group_that_does_not_subscribe_gets_an_error_in_the_end(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        one = bench.member("one", topic)
        bench.persister.refuse = KafkaError(ErrorCode.INVALID_REQUEST, "not initialized")
        response = await one.fetch(max_wait_ms=60_000)
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    run(scenario())


def test_sessions_follow_their_epochs(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        bench.sessions_max = 1
        topic = await bench.create("t")
        one, two = bench.member("one", topic), bench.member("two", topic)

        async def code(**request: int) -> ErrorCode:
            with pytest.raises(KafkaError) as error:
                await one.fetch(**request)
            return error.value.code

        assert await code(epoch=1) is ErrorCode.SHARE_SESSION_NOT_FOUND
        await one.fetch(epoch=0)
        assert await code(epoch=3) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
        with pytest.raises(KafkaError) as full:
            await two.fetch(max_wait_ms=500)
        assert full.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert "group.share.max.share.sessions" in full.value.message
        with pytest.raises(KafkaError) as zero:
            await one.acknowledge((0, 0, [ACCEPT]), epoch=0)
        assert zero.value.code is ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await code(epoch=1, is_renew_ack=True) is ErrorCode.INVALID_REQUEST
        await one.fetch(epoch=0)
        await one.fetch(epoch=-1)
        assert await code(epoch=-1) is ErrorCode.SHARE_SESSION_NOT_FOUND

    run(scenario())


@pytest.mark.parametrize(
    "acknowledged",
    [
        [(5, 3, [ACCEPT])],
        [(0, 3, [ACCEPT]), (3, 4, [ACCEPT])],
        [(0, 3, [ACCEPT, ACCEPT])],
        [(0, 3, [])],
        [(0, 3, [5])],
        [(0, 3, [-1])],
        [(0, 3, [RENEW])],
        [(0, 2**62, [ACCEPT])],
        [(0, 999_999, [RELEASE] * 1_000_000)],
        [(10, 20, [ACCEPT])],
    ],
)
def test_acknowledgements_that_make_no_sense_are_refused(
    directory: Path, acknowledged: list[tuple[int, int, list[int]]]
) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 10)
        one = bench.member("one", topic)
        assert await one.acquired(max_wait_ms=1000) == [(0, 9, 1)]
        assert await one.acknowledge(*acknowledged) == ErrorCode.INVALID_REQUEST
        assert await one.acknowledge((0, 9, [ACCEPT])) == 0, "none of them was taken"
        writes = bench.persister.writes
        assert await one.acknowledge((0, 9, [ACCEPT])) == 0, "records before the window are ignored"
        assert bench.persister.writes == writes

    run(scenario())


def test_records_of_other_members_cannot_be_acknowledged(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 5)
        bench.write("t", 5)
        one, two = bench.member("one", topic), bench.member("two", topic)
        assert await one.acquired(max_wait_ms=1000, max_records=5) == [(0, 4, 1)]
        assert await two.acquired() == [(5, 9, 1)]
        assert await one.acknowledge((0, 9, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
        assert await one.acquired((0, 4, [RELEASE])) == []
        assert await one.acquired() == [(0, 4, 2)]

    run(scenario())


def test_many_acknowledgements_are_taken_in_turns(directory: Path) -> None:
    """A member that disconnects in between has acquired nothing more, and leaves the rest to others."""
    size, count = ACKNOWLEDGED_IN_A_TURN, 3

    async def scenario() -> None:
        bench = ShareBench(directory)
        topics = [await bench.create(f"t{each}") for each in range(count)]
        for each in range(count):
            bench.write(f"t{each}", size)
        one, two = bench.member("one", *topics), bench.member("two", *topics)
        most = {"max_records": count * size, "batch_size": count * size}
        assert await one.acquired(max_wait_ms=1000, **most) == [(0, size - 1, 1)] * count
        one.acknowledges_all = True
        fetching = one.begin_fetch((0, size - 1, [ACCEPT, RELEASE] * (size // 2)), **most)
        await bench.idle()
        one.disconnect()
        with pytest.raises(KafkaError) as refused:
            await fetching
        assert refused.value.code is ErrorCode.SHARE_SESSION_NOT_FOUND
        again = await two.acquired(max_wait_ms=1000, **most)
        assert again.count((0, size - 1, 2)) == count - 1
        assert sum(last - first + 1 for first, last, _ in again) == size // 2 + (count - 1) * size

    run(scenario())


def test_an_acquisition_that_cannot_be_stored_is_undone(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        one, two = bench.member("one", topic), bench.member("two", topic)
        assert await one.acquired(max_wait_ms=1000) == [(0, 3, 1)]
        while bench.persister.writes == 0:
            await bench.idle()
        for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT):
            bench.persister.refuse = KafkaError(code)
            assert await one.acknowledge((0, 3, [RELEASE])) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await two.acquired() == []
        bench.persister.refuse = None
        assert await one.acknowledge((0, 3, [ACCEPT])) == 0
        assert bench.persister.start[GROUP, topic, 0] == 4

    run(scenario())


def test_stored_states_of_records_that_the_log_has_lost_do_not_count(directory: Path) -> None:
    """The records after an unclean election have the offsets of those that were acknowledged."""

    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        key = (GROUP, topic, 0)
        bench.persister.start[key] = 1
        bench.persister.records[key] = {2: (2, 1), 3: (0, 2), 4: (2, 1), 5: (4, 1)}
        one = bench.member("one", topic)
        assert await one.acquired(max_wait_ms=1000) == [(1, 1, 1), (3, 3, 3)]
        while bench.persister.writes == 0:
            await bench.idle()
        assert bench.persister.records[key].keys() == {1, 2, 3}
        bench.write("t", 2)
        assert await one.acquired((1, 1, [ACCEPT]), (3, 3, [ACCEPT])) == [(4, 5, 1)]

    run(scenario())


def test_a_leader_with_a_successor_does_not_replace_lost_records(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        key = (GROUP, topic, 0)
        stored = bench.persister.records[key] = {4: (2, 1)}
        bench.persister.refuse_write = KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        response = await bench.member("one", topic).fetch(max_wait_ms=1000)
        assert response.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert bench.persister.records[key] is stored

    run(scenario())


def test_state_that_makes_no_sense_does_not_keep_members_waiting(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        bench.persister.records[GROUP, topic, 0] = {0: (7, 1)}
        one = bench.member("one", topic)
        response = await one.fetch(max_wait_ms=1000)
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        bench.persister.forget()
        assert await one.acquired(max_wait_ms=1000) == [(0, 3, 1)]

    run(scenario())


def test_locks_that_end_are_stored_though_the_first_write_fails(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 4)
        assert await bench.member("one", topic).acquired(max_wait_ms=1000) == [(0, 3, 1)]
        await asyncio.sleep(LOCK_S - 1)
        bench.persister.refuse = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await asyncio.sleep(2)
        bench.persister.refuse = None
        await asyncio.sleep(WRITE_AGAIN_S)
        assert bench.persister.records[GROUP, topic, 0] == dict.fromkeys(range(4), (0, 1))

    run(scenario())


def test_a_new_leader_delivers_unacknowledged_records(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 10)
        one = bench.member("one", topic)
        assert await one.acquired(max_wait_ms=1000) == [(0, 9, 1)]
        assert await one.acknowledge((3, 4, [ACCEPT]), (5, 5, [RELEASE])) == 0
        waiting = one.begin_fetch(max_wait_ms=60_000)  # record 5 again
        assert (await waiting).responses[0].partitions[0].acquired_records[0].delivery_count == 2
        waiting = one.begin_fetch(max_wait_ms=60_000)
        await bench.idle()
        bench.alter("t", leader=OTHER)
        data = (await waiting).responses[0].partitions[0]
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert data.current_leader.leader_id == OTHER
        assert await one.acknowledge((0, 0, [ACCEPT])) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        bench.alter("t", leader=1)
        assert await one.acquired(max_wait_ms=1000) == [(0, 2, 1), (5, 5, 2), (6, 9, 1)]

    run(scenario())


def test_aborted_and_control_records_are_passed_over(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        bench.settings = replace(bench.settings, isolation=Isolation.READ_COMMITTED)
        topic = await bench.create("t")
        bench.write_in_transaction("t", count=3)
        bench.end_transaction("t", committed=False)
        bench.write_in_transaction("t", epoch=1, count=2)
        one = bench.member("one", topic)
        assert await one.acquired(max_wait_ms=100) == [], "open transactions are not read"
        bench.end_transaction("t", epoch=1)
        assert await one.acquired(max_wait_ms=1000) == [(4, 5, 1)]
        assert await one.acknowledge((4, 5, [ACCEPT])) == 0
        assert await one.acquired(max_wait_ms=100) == []
        assert bench.persister.start[GROUP, topic, 0] == 7, "the marker is passed over, too"

    run(scenario())


def test_deleted_records_are_no_longer_delivered(directory: Path) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topic = await bench.create("t")
        bench.write("t", 5)
        bench.write("t", 5)
        one, two = bench.member("one", topic), bench.member("two", topic)
        assert await one.acquired(max_wait_ms=1000, max_records=5) == [(0, 4, 1)]
        bench.partition("t").delete_before(5)
        assert await two.acquired() == [(5, 9, 1)]
        assert await one.acknowledge((0, 4, [ACCEPT])) == 0

    run(scenario())


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 5), ("by_duration:PT1H", 0)])
def test_a_new_group_begins_where_its_configuration_says(directory: Path, reset: str, first: int) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        bench.settings = replace(bench.settings, offset_reset=reset)
        topic = await bench.create("t")
        bench.write("t", 5)
        one = bench.member("one", topic)
        waiting = one.begin_fetch(max_wait_ms=60_000)
        while not all(led.is_active for led in bench.share) or bench.persister.writes == 0:
            await bench.idle()
        assert bench.persister.start[GROUP, topic, 0] == first, "it is stored at once"
        bench.write("t", 5)
        response = await waiting
        assert response.responses[0].partitions[0].acquired_records[0].first_offset == first

    run(scenario())


def test_members_need_the_right_to_read_the_group_and_the_topic(directory: Path) -> None:
    async def scenario() -> None:
        may_not_group = Authorization(AllBut((ResourceType.GROUP, Operation.READ)), None)
        bench = ShareBench(directory, may_not_group)
        topic = await bench.create("t")
        for request in (bench.member("one", topic).fetch(), bench.member("one", topic).acknowledge(epoch=1)):
            with pytest.raises(KafkaError) as error:
                await request
            assert error.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED

        may_not_topic = Authorization(AllBut((ResourceType.TOPIC, Operation.READ)), None)
        (directory / "other").mkdir()
        bench = ShareBench(directory / "other", may_not_topic)
        topic = await bench.create("t")
        one = bench.member("one", topic)
        data = (await one.fetch()).responses[0].partitions[0]
        assert data.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await one.acknowledge((0, 0, [ACCEPT])) == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    run(scenario())


# --- Sessions of very many partitions ---


@pytest.fixture
def small_turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One partition in each turn of the event loop. Returns what was done, and ``turn`` for each turn."""
    monkeypatch.setattr(pending_share_fetch, "LOOKED_AT_IN_A_TURN", 1)
    for module in (pending_share_fetch, render):
        monkeypatch.setattr(module, "RENDERED_IN_A_TURN", 1)
    monkeypatch.setattr(handler, "RELEASED_IN_A_TURN", 1)
    monkeypatch.setattr(acknowledging, "RELEASED_IN_A_TURN", 1)
    done: list[str] = []

    async def turn() -> None:
        done.append("turn")
        await asyncio.sleep(0)

    monkeypatch.setattr(steps, "next_turn", turn)
    for owner, method in ((pending_share_fetch.PendingShareFetch, "_look_at"), (render, "_partition_data")):
        _noting(monkeypatch, owner, method, done)
    for method in ("release_member", "end_when_stored"):
        _noting(monkeypatch, LedSharePartition, method, done)
    return done


def _noting(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, done: list[str]) -> None:
    original = getattr(owner, method)

    def noted(*args: Any) -> Any:
        done.append(method)
        return original(*args)

    monkeypatch.setattr(owner, method, noted)


def _in_one_turn(done: list[str]) -> int:
    """Return how often something was done between two turns, at most."""
    return max(len(group.split()) for group in " ".join(done).split("turn"))


def test_a_session_of_very_many_partitions_is_served_in_turns(directory: Path, small_turns: list[str]) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topics = [await bench.create(f"t{each}") for each in range(6)]
        one, two = bench.member("one", *topics), bench.member("two", *topics)
        assert await one.acquired(max_wait_ms=1000) == []  # a wait until its time is up
        bench.write("t2", 3)
        assert await one.acquired(max_wait_ms=1000) == [(0, 2, 1)]
        fetching = two.begin_fetch(max_wait_ms=60_000)
        await asyncio.sleep(1)
        assert not fetching.done()
        bench.write("t4", 1)
        response = await fetching
        assert {len(topic.partitions) for topic in response.responses} == {1}, "all are new in the session"
        assert len(response.responses) == 6
        one.disconnect()
        assert await two.acquired(max_wait_ms=1000) == [(0, 2, 2)]
        two.disconnect()
        await asyncio.sleep(1)
        assert bench.share.of_group(GROUP) == []

    run(scenario())
    assert _in_one_turn(small_turns) <= 3
    assert {"_look_at", "_partition_data", "release_member", "end_when_stored"} <= set(small_turns)


def test_a_share_fetch_of_very_many_partitions_notices_changes_during_its_look(
    directory: Path, small_turns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are appended to a partition that the fetch has just found empty."""

    async def scenario() -> None:
        bench = ShareBench(directory)
        topics = [await bench.create(f"t{each}") for each in range(4)]
        member = bench.member("one", *topics)
        assert await member.acquired(max_wait_ms=1000) == []  # all are loaded
        looked = pending_share_fetch.PendingShareFetch._look_at
        writes = iter((topics[1],))

        def append_behind(fetch: pending_share_fetch.PendingShareFetch, target: TopicPartition) -> None:
            looked(fetch, target)
            if target.topic_id == topics[1] and next(writes, None):
                bench.write("t1", 2)

        monkeypatch.setattr(pending_share_fetch.PendingShareFetch, "_look_at", append_behind)
        began = asyncio.get_running_loop().time()
        assert await member.acquired(max_wait_ms=60_000) == [(0, 1, 1)]
        assert asyncio.get_running_loop().time() - began < 60

    run(scenario())


def test_a_client_that_goes_while_very_many_partitions_are_looked_at_acquires_nothing(
    directory: Path, small_turns: list[str]
) -> None:
    async def scenario() -> None:
        bench = ShareBench(directory)
        topics = [await bench.create(f"t{each}") for each in range(6)]
        one, two = bench.member("one", *topics), bench.member("two", *topics)
        for member in (one, two):
            assert await member.acquired(max_wait_ms=1000) == []
        fetching = one.begin_fetch(max_wait_ms=60_000)
        await asyncio.sleep(1)
        for each in range(6):
            bench.write(f"t{each}", 1)
        await asyncio.sleep(0)  # its look has begun
        one.disconnect()
        fetching.cancel()
        await asyncio.sleep(1)
        assert len(await two.acquired(max_wait_ms=1000)) == 6

    run(scenario())


def test_a_response_has_no_more_batches_than_its_bytes_allow(directory: Path) -> None:
    """But for one: a batch of each of very many partitions would be as much memory as the client likes."""

    async def scenario() -> None:
        bench = ShareBench(directory)
        topics = [await bench.create(f"t{each}") for each in range(9)]
        member = bench.member("one", *topics)
        assert await member.acquired(max_wait_ms=1000) == []
        for each in range(9):
            bench.write(f"t{each}", 1)
        size = len(batch(1))
        assert len(await member.acquired(max_wait_ms=1000, max_records=1 << 30, max_bytes=3 * size)) == 3

    run(scenario())
