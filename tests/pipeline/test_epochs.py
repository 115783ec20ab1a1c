"""The writers of ``format("parley")`` in transactions, against a real broker, without Spark's Java."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from parley import read_topic
from parley.pipeline.client import transactions
from parley.pipeline.client.cluster import Cluster, Connection, Isolation
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.client.writing import Producer
from parley.pipeline.format import sink
from parley.pipeline.format.exactly_once import Epoch, Note, look_up
from parley.pipeline.format.options import SinkOptions, sink_options
from parley.pipeline.format.sink import KafkaBatchWriter, _write
from parley.protocol.errors import ErrorCode, KafkaError
from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.transactions import await_markers

pytestmark = pytest.mark.spark(java=False)

FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)


@pytest.fixture
def topic(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> str:
    return kafka_broker.create_topic(request.node.name.replace("[", "-").replace("]", ""), partitions=2)


@pytest.fixture
def options(kafka_broker: KafkaBroker, topic: str) -> SinkOptions:
    return sink_options(given(kafka_broker, topic=topic))


@pytest.fixture
def cluster(kafka_broker: KafkaBroker) -> Iterator[Cluster]:
    with Cluster(Connection(bootstrap=kafka_broker.bootstrap_servers)) as cluster:
        yield cluster


def given(broker: KafkaBroker, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, "transactionalIdPrefix": "tx", **more}


def attempt(query: str, number: int, task: int = 0) -> Epoch:
    return Epoch(query, number, task, "tx")


def rows(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)})


def visible(broker: KafkaBroker, topic: str, isolation: Isolation = Isolation.READ_COMMITTED) -> list[str]:
    """Return the values that a reader sees now."""
    found = read_topic(broker.bootstrap_servers, topic, isolation=isolation)
    return sorted(value.decode() for value in found["value"].to_pylist())


def values(broker: KafkaBroker, topic: str) -> list[str]:
    """Wait until all transactions have ended. Returns the committed values."""
    await_markers(broker.bootstrap_servers, topic)
    return visible(broker, topic)


def arrived(broker: KafkaBroker, topic: str, count: int) -> None:
    """Wait until this many records are in the log, committed or not, because the writer does not report
    their arrival."""
    while len(visible(broker, topic, Isolation.READ_UNCOMMITTED)) < count:
        pass


def at_once(options: SinkOptions) -> SinkOptions:
    """Return the options, changed so that every row is sent when it is written."""
    return replace(options, writing=replace(options.writing, buffer_bytes=1))


def test_an_epoch_of_a_task_is_seen_whole(kafka_broker: KafkaBroker, topic: str, options: SinkOptions) -> None:
    """The rows go to two topics. No reader of committed records sees a row before all rows are visible."""
    other = kafka_broker.create_topic(f"{topic}-other")
    options = at_once(sink_options(given(kafka_broker)))

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": [topic, topic]})
        yield pa.RecordBatch.from_pydict({"value": ["c"], "topic": [other]})
        arrived(kafka_broker, topic, 2)
        arrived(kafka_broker, other, 1)
        assert visible(kafka_broker, topic) + visible(kafka_broker, other) == []

    _write(batches(), options, attempt("whole", 0))
    assert (values(kafka_broker, topic), values(kafka_broker, other)) == (["a", "b"], ["c"])


def test_a_task_that_fails_aborts(
    kafka_broker: KafkaBroker, topic: str, options: SinkOptions, cluster: Cluster
) -> None:
    """Neither its rows nor its note become visible, and readers need not wait until its transaction times out."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows("a", "b")
        arrived(kafka_broker, topic, 2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _write(failing(), at_once(options), attempt("fails", 0))
    assert look_up(cluster, attempt("fails", 0)) is None
    _write(iter([rows("c")]), options, None)
    assert values(kafka_broker, topic) == ["c"]
    _write(iter([rows("a", "b")]), options, attempt("fails", 0))
    assert values(kafka_broker, topic) == ["a", "b", "c"]


def test_an_epoch_that_is_run_again_writes_nothing_twice(
    kafka_broker: KafkaBroker, topic: str, options: SinkOptions
) -> None:
    """The next epochs of the task, whose producer has the same id, write equal rows."""
    for number in range(3):
        for _ in range(3):
            _write(iter([rows("a", "b"), rows("b")]), options, attempt("again", number))
    _write(iter([rows("b"), rows("b", "a")]), options, attempt("again", 2))
    assert values(kafka_broker, topic) == ["a"] * 3 + ["b"] * 6
    _write(iter([rows("a", "b")]), options, attempt("again", 2, task=1))
    _write(iter([rows("a", "b")]), options, attempt("other", 2))
    assert values(kafka_broker, topic) == ["a"] * 5 + ["b"] * 8


def test_rows_that_the_first_run_did_not_have_are_not_lost(
    kafka_broker: KafkaBroker, topic: str, options: SinkOptions
) -> None:
    for again in ((), ("c",), ("c", "d"), ("d",)):
        _write(iter([rows("a", "b"), rows(*again)]), options, attempt("more", 5))
    assert values(kafka_broker, topic) == ["a", "b", "c", "d"]


def test_a_task_taken_for_dead_is_fenced(kafka_broker: KafkaBroker, topic: str, options: SinkOptions) -> None:
    """Another attempt, for example by speculation, has begun meanwhile, and aborts the first attempt's transaction."""

    def zombie() -> Iterator[pa.RecordBatch]:
        yield rows("a", "b")
        arrived(kafka_broker, topic, 2)
        _write(iter([rows("a", "b", "c")]), options, attempt("zombie", 4))
        yield rows("c")

    with pytest.raises(KafkaError) as caught:
        _write(zombie(), at_once(options), attempt("zombie", 4))
    assert caught.value.code in FENCED
    assert values(kafka_broker, topic) == ["a", "b", "c"]
    _write(iter([rows("a", "b", "c")]), options, attempt("zombie", 4))
    assert values(kafka_broker, topic) == ["a", "b", "c"]


def test_an_epoch_that_comes_too_late_is_refused(kafka_broker: KafkaBroker, topic: str, options: SinkOptions) -> None:
    """Such an epoch comes from a driver that was considered dead, or from a checkpoint that an operator
    has restored."""
    _write(iter([rows("a")]), options, attempt("late", 8))
    with pytest.raises(KafkaError, match=r"'tx-late-0' has committed epoch 8.*'transactionalIdPrefix'") as caught:
        _write(iter([rows("a")]), options, attempt("late", 7))
    assert caught.value.code is ErrorCode.PRODUCER_FENCED
    _write(iter([rows("b")]), options, attempt("late", 9))
    assert values(kafka_broker, topic) == ["a", "b"]


def test_a_note_that_is_seen_too_late(
    kafka_broker: KafkaBroker, topic: str, options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first broker to receive the request is no longer the group's coordinator, and does not know that."""
    _write(iter([rows("a", "b")]), options, attempt("stale", 0))

    def stale(cluster: Cluster, epoch: Epoch, *, stable: bool = True) -> Note | None:
        return None if stable else look_up(cluster, epoch, stable=False)

    with monkeypatch.context() as patch:
        patch.setattr(sink, "look_up", stale)
        with pytest.raises(KafkaError, match=r"note of 'tx-stale-0' .* must be run again"):
            _write(iter([rows("a", "b")]), options, attempt("stale", 0))
    assert values(kafka_broker, topic) == ["a", "b"]
    _write(iter([rows("a", "b")]), options, attempt("stale", 0))
    assert values(kafka_broker, topic) == ["a", "b"]


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
def test_a_commit_without_a_response(
    kafka_broker: KafkaBroker, topic: str, options: SinkOptions, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """The connection breaks after the commit, or before it. The task fails, and is run again."""
    end = transactions.end

    async def broken(*args: Any, committed: bool) -> None:
        if is_done or not committed:
            await end(*args, committed=committed)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "end", broken)
        with pytest.raises(KafkaError, match="the connection broke"):
            _write(iter([rows("a", "b")]), options, attempt("unsure", 0))
    assert values(kafka_broker, topic) == (["a", "b"] if is_done else [])
    _write(iter([rows("a", "b")]), options, attempt("unsure", 0))
    assert values(kafka_broker, topic) == ["a", "b"]


def test_a_copy_of_a_task_that_begins_when_the_batch_is_done_writes_nothing(
    kafka_broker: KafkaBroker, topic: str, options: SinkOptions, cluster: Cluster
) -> None:
    """Spark kills such a copy (by speculation, for example) only a moment later. A copy that began before is fenced."""
    writer = KafkaBatchWriter(options)
    done = [_write(iter([rows("a", "b")]), options, writer._epoch(task)) for task in range(2)]
    before = Producer(cluster, replace(options.writing, transactional_id=writer._epoch(1).transactional_id))
    before.begin()
    before.write(rows("b"), topic=topic)
    before.flush()
    writer.commit([*done])
    _write(iter([rows("a", "b")]), options, writer._epoch(0))
    assert values(kafka_broker, topic) == ["a", "a", "b", "b"]
    with pytest.raises(KafkaError) as caught:
        before.commit()
    assert caught.value.code in FENCED
    before.close()


def test_a_batch_that_is_given_up_aborts_transactions_of_killed_tasks(
    kafka_broker: KafkaBroker, topic: str, options: SinkOptions, cluster: Cluster
) -> None:
    """A killed task leaves no commit message. Readers need not wait for the timeout of its transaction."""
    writer = KafkaBatchWriter(options)
    lost = writer._epoch(1)
    killed = Producer(cluster, replace(options.writing, transactional_id=lost.transactional_id))
    killed.begin()
    killed.write(rows("a"), topic=topic)
    killed.flush()
    done = _write(iter([rows("b")]), options, writer._epoch(0))
    writer.abort([done, None])
    assert values(kafka_broker, topic) == ["b"]
    with pytest.raises(KafkaError) as caught:
        killed.commit()
    assert caught.value.code in FENCED
    killed.close()


def test_a_transaction_timeout_that_the_brokers_refuse(kafka_broker: KafkaBroker, topic: str) -> None:
    refused = sink_options(given(kafka_broker, topic=topic, **{"kafka.transaction.timeout.ms": "900001"}))
    with pytest.raises(KafkaError, match=r"'kafka.transaction.timeout.ms' to at most") as caught:
        _write(iter([rows("a")]), refused, attempt("timeout", 0))
    assert caught.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_a_note_keeps_its_producers() -> None:
    note = Note(7, 3, 1000, (ProducerId(5000, 2), ProducerId(5000, 3), ProducerId(4000, 0)))
    assert Note.parse(7, note.text) == note
    without_epochs = '{"task":3,"since_ms":1000,"steps":[5000,1]}'  # as written without transactions
    old = Note(7, 3, 1000, (ProducerId(5000, 0), ProducerId(5001, 0)))
    assert (Note.parse(7, without_epochs), old.text) == (old, without_epochs)
    assert Note.parse(7, '{"task":3,"since_ms":1000,"steps":[5000],"epochs":[1,2]}') is None
