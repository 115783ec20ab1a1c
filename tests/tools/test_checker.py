"""The history checker finds planted violations, and reports none in a correct history."""

from __future__ import annotations

import json
from concurrent.futures import Future
from threading import Event
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from parley.tools.checker import Guarantees, History, Kind, Outcome, Trial, Verdict, check, payload, trial
from parley.tools.checker.history import seen
from parley.tools.checker.trial import create
from tests.support.kafka import KAFKA_3, MissingPeer, kafka_39_zk, kafka_libs
from tests.tools.conftest import Parley

LOOSE = Guarantees(ordered=False, once=False)


class Log:
    """A partition of a cluster that may lose, reorder or invent records."""

    def __init__(self) -> None:
        self.history = History()
        self.values: list[bytes | None] = []

    def send(self, name: str, *, acknowledged: bool = True, written: bool = True) -> int:
        number = self.history.sent(name, 0)
        if written:
            self.values.append(payload(name, number, 50))
        if acknowledged:
            self.history.acknowledged(name, number, 0, len(self.values) - written, at=float(number))
        return number

    def verdict(self, start: int = 0) -> Verdict:
        records = list(enumerate(self.values))[start:]
        self.history.final(0, start, len(self.values), records)
        return check(self.history)

    def kinds(self, start: int = 0) -> list[Kind]:
        return [each.kind for each in self.verdict(start).violations]


@pytest.fixture
def log() -> Log:
    """The history of ten records of one producer, read by one consumer."""
    log = Log()
    log.history.producer("p", Guarantees())
    log.history.producer("loose", LOOSE)
    for _ in range(10):
        log.send("p")
    for offset, value in enumerate(log.values):
        log.history.saw("r", 0, offset, value)
    return log


def test_nothing_is_wrong(log: Log) -> None:
    verdict = log.verdict()
    assert verdict.ok
    assert verdict.counts == {"sent": 10, "acknowledged": 10, "found": 10}
    assert str(verdict) == "10 sent, 10 acknowledged, 10 found; longest pause 1.000 s"


def test_a_lost_record(log: Log) -> None:
    log.send("p", written=False)
    assert log.kinds() == [Kind.LOST]
    assert "p:10, acknowledged at 0@10, is not there" in str(log.verdict())


def test_a_lost_tail(log: Log) -> None:
    del log.values[8:]
    assert log.kinds() == [Kind.LOST] * 2 + [Kind.VANISHED] * 2


def test_a_record_that_was_deleted_in_order_is_not_lost(log: Log) -> None:
    assert log.kinds(start=5) == []


@pytest.mark.parametrize(("written", "start", "kinds"), [(True, 0, []), (False, 0, [Kind.LOST]), (False, 5, [])])
def test_a_record_that_was_acknowledged_without_its_place(
    log: Log, written: bool, start: int, kinds: list[Kind]
) -> None:
    """The client learns from the response to a retry or to a later record that the record is stored."""
    number = log.send("p", acknowledged=False, written=written)
    log.history.acknowledged("p", number, 0, None, at=11.0)
    assert log.kinds(start) == kinds
    assert log.verdict(start).counts["acknowledged"] == 11


def test_a_record_at_another_place(log: Log) -> None:
    log.send("p", acknowledged=False)
    log.history.acknowledged("p", 10, 0, 12, at=11.0)
    assert log.kinds() == [Kind.MOVED]


def test_records_in_another_order(log: Log) -> None:
    log.values[3], log.values[4] = log.values[4], log.values[3]
    assert set(log.kinds()) == {Kind.REORDERED, Kind.MOVED, Kind.CHANGED}
    assert log.kinds().count(Kind.REORDERED) == 1


@pytest.mark.parametrize(
    "value", [None, b"", b"hello", b"p:3:00000000:", payload("q", 0), payload("p", 10), b"\xff:1:2:3"]
)
def test_an_invented_record(log: Log, value: bytes | None) -> None:
    log.values.append(value)
    assert log.kinds() == [Kind.INVENTED]


def test_a_record_in_another_partition(log: Log) -> None:
    log.history.sent("p", 1)
    log.values.append(payload("p", 10))
    assert log.kinds() == [Kind.INVENTED]
    log.history.acknowledged("p", 10, 0, 10, at=11.0)
    assert log.history.failures == ["p:10 was acknowledged in partition 0, but was not sent there"]


def test_a_damaged_record(log: Log) -> None:
    value = log.values[5]
    assert value is not None
    log.values[5] = value[:-1] + b"x"
    assert set(log.kinds()) == {Kind.INVENTED, Kind.LOST, Kind.CHANGED}


def test_a_record_twice(log: Log) -> None:
    log.values.append(log.values[9])
    assert log.kinds() == [Kind.DUPLICATED]


def test_unpromised_properties_are_not_violations(log: Log) -> None:
    numbers = [log.send("loose") for _ in range(3)]
    log.values += [log.values[10], payload("loose", numbers[1], 50)]
    log.values[10], log.values[11] = log.values[11], log.values[10]
    assert log.kinds() == []


def test_a_record_of_unknown_fate_may_be_there_or_not(log: Log) -> None:
    log.send("p", acknowledged=False)
    log.send("p", acknowledged=False, written=False)
    log.history.failed("p", 11, "timed out")
    assert log.kinds() == []


def test_a_reader_got_a_record_that_is_not_in_the_log(log: Log) -> None:
    log.history.saw("r", 0, 10, payload("p", 10, 50))
    assert log.kinds() == [Kind.VANISHED]


def test_a_reader_skipped_a_record(log: Log) -> None:
    del log.history.readers["r"][0][4]
    assert log.kinds() == [Kind.SKIPPED]


class TestTransactions:
    """Two transactions of two records each: the first is committed; the second ends as a test says."""

    @pytest.fixture
    def log(self) -> Log:
        log = Log()
        log.history.producer("t")
        for _ in range(2):
            log.history.began("t")
            log.send("t")
            log.send("t")
            log.history.ended("t", Outcome.COMMITTED)
        return log

    def test_all_is_there(self, log: Log) -> None:
        assert log.verdict().ok
        counts = {"committed": 2, "aborted": 0, "sent": 4, "acknowledged": 4, "found": 4}
        assert log.verdict().counts == counts

    def test_nothing_of_an_aborted_one_is_there(self, log: Log) -> None:
        log.history.ended("t", Outcome.ABORTED)
        assert log.kinds() == [Kind.UNCOMMITTED] * 2
        del log.values[2:]
        assert log.kinds() == []

    def test_a_reader_saw_an_aborted_record(self, log: Log) -> None:
        log.history.ended("t", Outcome.ABORTED)
        log.history.saw("r", 0, 2, log.values[2])
        del log.values[2:]
        assert log.kinds() == [Kind.UNCOMMITTED]

    @pytest.mark.parametrize(("left", "kinds"), [(0, []), (1, [Kind.TORN]), (2, [])])
    def test_all_or_none_of_an_unknown_one_are_there(self, log: Log, left: int, kinds: list[Kind]) -> None:
        log.history.ended("t", Outcome.UNKNOWN)
        del log.values[2 + left :]
        assert log.kinds() == kinds

    def test_the_start_of_a_partition_may_be_deleted(self, log: Log) -> None:
        log.history.ended("t", Outcome.UNKNOWN)
        assert log.kinds(start=3) == []

    def test_a_commit_acknowledges_its_records(self, log: Log) -> None:
        log.history.began("t")
        log.send("t", acknowledged=False, written=False)
        log.history.ended("t", Outcome.COMMITTED)
        assert log.kinds() == [Kind.LOST]

    def test_a_zombie_must_not_commit(self, log: Log) -> None:
        log.history.producers["t"].commits_after_fencing = 1
        assert log.kinds() == [Kind.NOT_FENCED]


def test_the_longest_pause_is_measured_per_partition() -> None:
    history = History()
    history.producer("p")
    for at, partition in ((0.0, 0), (0.5, 1), (1.0, 0), (4.0, 1), (4.5, 0)):
        history.acknowledged("p", history.sent("p", partition), partition, 0, at=at)
    assert check(history).longest_pause_s == 3.5
    history.producers["p"].ended_at = 9.0
    assert check(history).longest_pause_s == 5.0


def test_a_value_names_its_record() -> None:
    assert seen(3, payload("p", 7, 100)) == (3, "p", 7)
    assert len(payload("p", 7, 100)) == 100
    assert seen(3, payload("p", 7)) == (3, "p", 7)


class Elections:
    """An ``AdminClient`` whose requests fail with these errors in turn, and then succeed."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def create_topics(self, topics: list[NewTopic]) -> dict[str, Future[None]]:
        answer = Future[None]()
        if self.errors:
            answer.set_exception(KafkaException(KafkaError(self.errors.pop(0))))
        else:
            answer.set_result(None)
        return {topic.topic: answer for topic in topics}


@pytest.mark.parametrize("then", [[], [KafkaError.TOPIC_ALREADY_EXISTS]])
def test_creating_the_topic_is_retried_while_there_is_no_controller(then: list[int]) -> None:
    cluster = Elections(KafkaError.NOT_CONTROLLER, KafkaError.NOT_CONTROLLER, *then)
    create(cast(AdminClient, cluster), NewTopic("t", 1))
    assert cluster.errors == []


def test_a_topic_that_already_exists_is_refused() -> None:
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        create(cast(AdminClient, Elections(KafkaError.TOPIC_ALREADY_EXISTS)), NewTopic("t", 1))


def test_clients_that_do_not_stop_are_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = Event()
    monkeypatch.setattr(trial, "STOP_S", 0.0)
    monkeypatch.setattr(Trial, "_follow", lambda self, name: released.wait())
    monkeypatch.setattr(Trial, "_produce", lambda self, name: released.wait())
    with Trial("127.0.0.1:1", "t", partitions=1) as stuck:
        pass
    released.set()
    assert stuck.errors == ["p0 did not stop within 0 s"]
    assert [record.getMessage() for record in caplog.records] == ["reader r0 does not stop; continuing without it"]


def test_names_of_producers() -> None:
    history = History()
    history.producer("p")
    for name in ("p", "a:b"):
        with pytest.raises(ValueError, match="invalid producer name"):
            history.producer(name)


@pytest.mark.system
@pytest.mark.parametrize(
    "clients",
    [
        {},
        pytest.param({"transactional": True}, marks=pytest.mark.soak),
        pytest.param({"idempotent": False}, marks=pytest.mark.soak),
    ],
)
def test_apache_kafka_passes(tmp_path_factory: pytest.TempPathFactory, clients: dict[str, Any]) -> None:
    try:
        kafka_libs(KAFKA_3)
    except MissingPeer as missing:
        pytest.skip(str(missing))
    with kafka_39_zk(tmp_path_factory.mktemp("kafka")) as kafka:
        trial = Trial(kafka.bootstrap_servers, "t", partitions=3, **clients)
        trial.create_topic(1)
        with trial:
            trial.wait_for_acknowledged(500)
            kafka.stop()
            kafka.start()
            trial.wait_for_acknowledged(500)
        verdict = trial.verdict()
    assert not trial.errors
    assert verdict.ok, verdict
    assert verdict.counts["acknowledged"] >= 1000
    if "transactional" in clients:
        assert min(verdict.counts["committed"], verdict.counts["aborted"]) > 5
    else:
        assert verdict.counts["found"] >= verdict.counts["acknowledged"]
    assert verdict.longest_pause_s > 0.1


@pytest.mark.slow
def test_parley_check_against_a_broker(on_broker: Parley) -> None:
    typed = on_broker("check", "--seconds", "1", "--rate", "200", "--partitions", "2")
    assert typed.code == 0, typed.out + typed.err
    assert typed.lines[-1] == "No acknowledged record is missing, and none is reordered, duplicated or invented."
    typed = on_broker("check", "--seconds", "1", "--rate", "200", "--no-idempotence", "--json")
    data = json.loads(typed.out)
    assert data["ok"] is True
    assert data["sent"] == data["acknowledged"] == data["found"] > 0
    assert not [name for name in on_broker("topics", "--list").lines if name.startswith("parley-check")]
    refused = on_broker("check", "--replication-factor", "5")
    assert refused.code == 1
    assert "cannot be created" in refused.err


def test_parley_check_without_a_broker_says_so(parley: Parley, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "WAIT_S", 0.1)
    typed = parley("check", "--seconds", "1", "--bootstrap-server", "127.0.0.1:1")
    assert (typed.code, typed.out) == (1, "")
    assert "no broker responds at 127.0.0.1:1" in typed.err


@pytest.mark.slow
@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT)), TimeoutError()])
def test_a_topic_that_cannot_be_deleted_does_not_change_the_verdict(
    on_broker: Parley, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Deleting a topic needs the coordination store; producing and consuming do not."""

    def fail(trial: Trial) -> None:
        raise error

    monkeypatch.setattr(Trial, "delete_topic", fail)
    typed = on_broker("check", "--seconds", "1", "--rate", "50", "--topic", "left-behind")
    monkeypatch.undo()
    on_broker("topics", "--delete", "--topic", "left-behind")
    assert typed.code == 0
    assert "parley topics --delete --topic left-behind" in typed.err
    assert "Traceback" not in typed.err
    assert typed.lines[-1].startswith("No acknowledged record is missing")
