"""``parley transactions``: what it shows, and what it aborts; Kafka's tool agrees."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.tools.checker import Outcome, Trial
from parley.tools.checker.trial import create
from parley.tools.cli.docs import help_of
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.json_shapes import SHAPES, differences
from parley.tools.cli.transactions import app
from parley.tools.cli.transactions.hanging import OpenTransaction, Scope, hanging
from parley.tools.cli.transactions.states import ActiveProducer, Transaction
from tests.support.kafka import Kafka4, MissingPeer, kafka_libs
from tests.support.kafka_tools import run_tool
from tests.tools.conftest import Parley, Typed

TOOL = "org.apache.kafka.tools.TransactionsCommand"
WITHOUT_ID = 4711
"""A producer id without a transactional id, so its transaction hangs."""


def test_common_options_may_stand_before_the_subcommand() -> None:
    words = ["--bootstrap-server", "a:1", "--command-config=x", "describe", "--transactional-id", "t"]
    moved = ["describe", "--bootstrap-server", "a:1", "--command-config=x", "--transactional-id", "t"]
    assert app.prepared(words) == moved
    assert app.prepared(moved) == moved
    assert app.prepared(["--help"]) == ["--help"]
    assert app.prepared([]) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("find-hanging",), "needs --topic or --broker-id"),
        (("find-hanging", "--broker-id", "1", "--partition", "0"), "--partition needs --topic"),
        (("abort", "--topic", "t", "--partition", "0"), "by --start-offset, or by --producer-id"),
        (("abort", "--topic", "t", "--partition", "0", "--producer-id", "1"), "by --start-offset, or by --producer-id"),
        (("describe",), "--transactional-id"),
    ],
)
def test_options_that_are_missing(parley: Parley, words: tuple[str, ...], text: str) -> None:
    typed = parley("transactions", *words)
    assert typed.code == 1
    assert text in typed.err


def test_a_search_needs_a_topic_or_a_broker() -> None:
    Scope(topic="t", partition=0).check()
    Scope(broker=1).check()
    with pytest.raises(CommandError):
        Scope().check()


def test_a_transaction_hangs_if_its_coordinator_will_not_end_it_there() -> None:
    def is_open(topic: str, producer_id: int) -> OpenTransaction:
        return OpenTransaction(topic, 0, ActiveProducer(producer_id, 0, -1, 0, 0, 5))

    known = Transaction(1, "id", 7, 0, "Ongoing", 60_000, 1, [("a", 0)])
    suspects = [is_open("a", 7), is_open("b", 7), is_open("a", 8), is_open("a", 9)]
    assert hanging(suspects, {7: known, 8: None}) == [is_open("b", 7), is_open("a", 8), is_open("a", 9)]


@pytest.mark.system
def test_the_options_are_kafkas() -> None:
    for name in ("list", "describe", "describe-producers", "abort", "find-hanging", "forceTerminateTransaction"):
        typed = run_tool(TOOL, "--bootstrap-server", "a:1", name, "--help")
        theirs = set(re.findall(r"^ +(--[a-zA-Z][a-zA-Z-]*)", typed.out, re.MULTILINE))
        assert theirs or name == "list", typed
        assert theirs <= set(re.findall(r"--[a-zA-Z][a-zA-Z-]*", help_of("transactions", name)))


Server = Broker | Kafka4
"""A broker that checks no transactional batch with its coordinator, so that a transaction can hang."""


@pytest.fixture(scope="module", params=["kafka", "parley"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "parley":
        with Broker(
            broker_id=1,
            offsets_topic_num_partitions=1,
            transaction_state_log_num_partitions=1,
            transaction_partition_verification_enable=False,
        ) as broker:
            yield broker
        return
    try:
        kafka_libs()
    except MissingPeer as missing:
        pytest.skip(str(missing))
    kafka = Kafka4(tmp_path_factory.mktemp("kafka"), {"transaction.partition.verification.enable": "false"})
    yield kafka
    kafka.close()


class Tool:
    """``parley transactions`` at a server, and Kafka's tool."""

    def __init__(self, parley: Parley, server: Server) -> None:
        self.parley = parley
        self.at = server.bootstrap_servers

    def data(self, name: str, *words: str) -> list[dict[str, Any]]:
        typed = self.parley("transactions", name, "--bootstrap-server", self.at, *words, "--json")
        assert typed.code == 0, typed.err
        found: list[dict[str, Any]] = json.loads(typed.out)
        assert differences(found, SHAPES[f"transactions {name}"][1]) == []
        return found

    def agree(self, name: str, *words: str, without: str = "") -> None:
        """Check that both tools print the same, apart from what the pattern ``without`` matches in each line."""
        ours = self.parley("transactions", "--bootstrap-server", self.at, name, *words)
        theirs = run_tool(TOOL, "--bootstrap-server", self.at, name, *words)
        assert (ours.code, theirs.code) == (0, 0), (ours, theirs)
        assert _compared(ours.lines, without) == _compared(theirs.out.splitlines(), without)

    def ended(self, name: str, *words: str) -> Typed:
        typed = self.parley("transactions", name, "--bootstrap-server", self.at, *words)
        assert (typed.code, typed.out) == (0, ""), typed
        return typed


def _compared(lines: list[str], without: str) -> list[str]:
    return sorted(re.sub(without, "", line.rstrip()) for line in lines)


@pytest.fixture
def tool(parley: Parley, server: Server) -> Tool:
    return Tool(parley, server)


def begin(server: Server, topic: str, transactional_id: str) -> Producer:
    """Create a topic, and begin a transaction in its partition 0."""
    create(AdminClient({"bootstrap.servers": server.bootstrap_servers}), NewTopic(topic, 1))
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(30) == 0
    return producer


async def leave_hanging(server: Server, topic: str) -> None:
    """Append a transactional batch of a producer that no coordinator knows."""
    batch = build([Record(0, 1000, None, b"lost", ())], producer_id=WITHOUT_ID, producer_epoch=3, base_sequence=0,
                  transactional=True)  # fmt: skip
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    async with Client(server.bootstrap_servers) as client:
        node = await client.leader(topic, 0)
        request = ProduceRequest(transactional_id="none", acks=-1, timeout_ms=30_000, topic_data=topics)
        answer = await client.send(request, node=node, version=9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def committed_values(server: Server, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "readers"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    return found


@pytest.mark.system
def test_an_open_transaction_is_shown_and_terminated(tool: Tool, server: Server) -> None:
    producer = begin(server, "shown", "id-shown")
    tool.agree("list")
    tool.agree("list", "--transactional-id-pattern", "id-sh.*")
    (listed,) = tool.data("list", "--transactional-id-pattern", "id-shown")
    assert listed["transactionState"] == "Ongoing"
    assert tool.data("list", "--transactional-id-pattern", "id-shown", "--duration-filter", "3600000") == []
    (described,) = tool.data("describe", "--transactional-id", "id-shown")
    assert described["topicPartitions"] == ["shown-0"]
    assert described["producerId"] == listed["producerId"]
    assert 0 <= described["transactionDurationMs"] < 3_600_000
    tool.agree("describe-producers", "--topic", "shown", "--partition", "0")
    (active,) = tool.data("describe-producers", "--topic", "shown", "--partition", "0", "--broker-id", "1")
    assert (active["producerId"], active["currentTransactionStartOffset"]) == (listed["producerId"], 0)

    ended = tool.ended("force-terminate", "--transactional-id", "id-shown")
    assert "'id-shown' no longer has an open transaction" in ended.err
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    tool.agree("describe", "--transactional-id", "id-shown")
    (described,) = tool.data("describe", "--transactional-id", "id-shown")
    assert described["transactionState"] in ("CompleteAbort", "Empty")
    assert described["currentTransactionStartTimeMs"] is None


@pytest.mark.system
def test_an_abort_of_a_live_transaction_warns(tool: Tool, server: Server) -> None:
    producer = begin(server, "live", "id-live")
    ended = tool.ended("abort", "--topic", "live", "--partition", "0", "--start-offset", "0")
    assert "this transaction does not hang" in ended.err
    assert "knows it as Ongoing, of the transactional id 'id-live'" in ended.err
    assert "live-0 now contains an abort marker of producer" in ended.err
    producer.abort_transaction(30)


@pytest.mark.system
def test_a_hanging_transaction_is_found_and_aborted(tool: Tool, server: Server) -> None:
    producer = begin(server, "hung", "id-hung")
    asyncio.run(leave_hanging(server, "hung"))
    until = time.time() + 30
    of = ("--topic", "hung", "--max-transaction-timeout", "0")
    found = tool.data("find-hanging", *of)
    while not found and time.time() < until:
        found = tool.data("find-hanging", *of)
    assert [(one["producerId"], one["startOffset"]) for one in found] == [(WITHOUT_ID, 1)]
    assert tool.data("find-hanging", "--topic", "hung", "--max-transaction-timeout", "1000000000") == []
    of_broker = tool.data("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    assert [{**one, "durationMin": 0} for one in of_broker] == [{**one, "durationMin": 0} for one in found]
    tool.agree("find-hanging", *of, "--partition", "0", without=r"\d+$")  # the duration, in minutes

    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce("hung", b"behind", partition=0)
    producer.commit_transaction(30)
    ended = tool.ended("abort", "--topic", "hung", "--partition", "0", "--start-offset", "1")
    assert f"hung-0 now contains an abort marker of producer {WITHOUT_ID}." in ended.err
    assert "Warning" not in ended.err
    assert committed_values(server, "hung", 2) == [b"open", b"behind"]
    assert tool.data("find-hanging", *of) == []
    typed = tool.parley(
        "transactions",
        "abort",
        "--bootstrap-server",
        tool.at,
        "--topic",
        "hung",
        "--partition",
        "0",
        "--start-offset",
        "1",
    )
    assert (typed.code, "No open transaction starts at offset 1 in hung-0" in typed.err) == (1, True)


@pytest.mark.system
@pytest.mark.parametrize("older", [False, True])
def test_kafkas_tool_aborts_hanging_transactions(tool: Tool, server: Server, older: bool) -> None:
    """Kafka's tool names a transaction by its first offset, or, for older brokers, by its producer and epochs."""
    topic = f"theirs-{older}"
    create(AdminClient({"bootstrap.servers": server.bootstrap_servers}), NewTopic(topic, 1))
    asyncio.run(leave_hanging(server, topic))
    at = "--producer-id", str(WITHOUT_ID), "--producer-epoch", "3", "--coordinator-epoch", "0"
    words = at if older else ("--start-offset", "0")
    place = "--bootstrap-server", tool.at, "abort", "--topic", topic, "--partition", "0"
    typed = run_tool(TOOL, *place, *words)
    assert typed.code == 0, typed
    assert tool.data("find-hanging", "--topic", topic, "--max-transaction-timeout", "0") == []
    again = run_tool(TOOL, *place, "--start-offset", "0")
    assert (again.code, "Could not find any open transactions starting at offset 0" in again.err) == (1, True), again


@pytest.mark.system
def test_kafkas_tool_terminates_a_transaction(tool: Tool, server: Server) -> None:
    producer = begin(server, "ended", "id-ended")
    typed = run_tool(TOOL, "--bootstrap-server", tool.at, "forceTerminateTransaction", "--transactionalId", "id-ended")
    assert typed.code == 0, typed
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    assert tool.data("find-hanging", "--topic", "ended", "--max-transaction-timeout", "0") == []


@pytest.mark.system
def test_logs_with_transactions_are_dumped_as_kafka_does(tool: Tool, server: Server, tmp_path: Path) -> None:
    producer = begin(server, "dumped", "id-dumped")
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "of-dumped"})
    producer.send_offsets_to_transaction([TopicPartition("dumped", 0, 1)], consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce("dumped", b"aborted", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    consumer.close()
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "transactional.id": "id-dumped"})
    producer.init_transactions(30)  # it waits for the markers of the previous transaction
    folder = server.server.parts.logs.directories[0].path if isinstance(server, Broker) else server.log_dir
    for name, option, texts in (
        ("__transaction_state-0/*.log", "--transaction-log-decoder", ["id-dumped", "transactionPartitions"]),
        ("__consumer_offsets-0/*.log", "--offsets-decoder", ["of-dumped", "endTxnMarker: COMMIT"]),
        ("dumped-0/*.log", "--print-data-log", ["payload: aborted", "endTxnMarker: ABORT"]),
        ("dumped-0/*.txnindex", "--print-data-log", ["lastStableOffset"]),
    ):
        (path,) = folder.glob(name)
        path = Path(shutil.copy(path, tmp_path))  # coordinators may write between the two dumps
        words = ("--files", str(path), option)
        ours = tool.parley("dump-log", *words)
        assert ours.code == 0, ours.err
        assert ours.lines == run_tool("org.apache.kafka.tools.DumpLogSegments", *words).out.splitlines()
        assert all(text in ours.out for text in texts)


def watch(trial: Trial, over: Event, seconds: float) -> None:
    """Wait until several transactions of each outcome have ended, however long that takes."""
    outcomes: list[Outcome] = []
    while min(outcomes.count(Outcome.COMMITTED), outcomes.count(Outcome.ABORTED)) < 5 and not trial.errors:
        over.wait(0.05)
        producers = list(trial.history.producers.values())
        outcomes = [transaction.outcome for producer in producers for transaction in list(producer.transactions)]


@pytest.mark.system
def test_a_check_with_transactions(parley: Parley, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.tools.cli.check._watch", watch)
    words = ("--transactions", "--partitions", "2", "--rate", "300", "--json")
    typed = parley("check", "--bootstrap-server", server.bootstrap_servers, *words)
    assert typed.code == 0, typed.out + typed.err
    data = json.loads(typed.out)
    assert differences(data, SHAPES["check"][1]) == []
    assert min(data["committed"], data["aborted"], data["found"]) > 0
    assert data["found"] < data["acknowledged"], "the records of aborted transactions are not found"
    assert data["clientErrors"] == []


@pytest.mark.system
def test_unknown_topics_partitions_and_ids_are_an_error(tool: Tool, server: Server) -> None:
    create(AdminClient({"bootstrap.servers": server.bootstrap_servers}), NewTopic("named", 2))
    of_named = ("--topic", "named", "--partition")
    for words, text in (
        (("describe", "--transactional-id", "unknown"), "does not know the transactional id `unknown`"),
        (("force-terminate", "--transactional-id", "unknown"), "does not know the transactional id `unknown`"),
        (("find-hanging", "--topic", "unknown"), "Topic 'unknown' does not exist"),
        (("find-hanging", *of_named, "2"), "Topic 'named' has no partition 2. Its last partition is 1."),
        (("find-hanging", "--broker-id", "9"), "Broker 9 does not exist. Existing brokers: 1."),
        (("describe-producers", "--topic", "unknown", "--partition", "0"), "Topic 'unknown' does not exist"),
        (("describe-producers", *of_named, "2"), "Topic 'named' has no partition 2"),
        (("describe-producers", *of_named, "0", "--broker-id", "9"), "Broker 9 does not exist. Existing brokers: 1."),
        (("abort", *of_named, "2", "--start-offset", "0"), "Topic 'named' has no partition 2"),
    ):
        name, *rest = words
        typed = tool.parley("transactions", name, "--bootstrap-server", tool.at, *rest)
        assert (typed.code, typed.out, text in typed.err) == (1, "", True), typed
    assert tool.data("list", "--transactional-id-pattern", "unknown") == []
