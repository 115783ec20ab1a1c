"""``parley produce``: how lines become records, its settings, and what it reports if records are not acknowledged."""

from __future__ import annotations

import subprocess
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from parley import Broker
from parley.broker.coordinators.producer_ids import ProducerIds
from parley.protocol.errors import ErrorCode, KafkaError
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.produce import Options, app, sending, settings
from parley.tools.cli.produce.line_reader import READERS, InputRecord, LineFormat, parse_line
from tests.support.ports import free_port
from tests.support.preloaded import preloaded_command
from tests.tools.conftest import Parley


def send(broker: Broker, topic: str, lines: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``parley produce`` with these lines as standard input."""
    command = preloaded_command("produce", "--bootstrap-server", broker.bootstrap_servers)
    return subprocess.run([*command, "--topic", topic, *words], input=lines, capture_output=True, check=False)


def sent(broker: Broker, topic: str, count: int) -> list[tuple[Any, Any, Any]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "any", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    messages = consumer.consume(count, 60)
    consumer.close()
    return sorted((one.key(), one.value(), one.headers() or []) for one in messages)


@pytest.mark.slow
def test_lines_with_keys_and_headers(broker: Broker, topic: str, tmp_path: Path) -> None:
    (tmp_path / "reader").write_text("parse.key=true\nparse.headers=true\nheaders.delimiter=\\t\nkey.separator=|\n")
    done = send(
        broker, topic, "a:1,b:2\tk1|vé\nc:3\tk2|NULL\n".encode(), "--reader-config", str(tmp_path / "reader"),
        "--reader-property", "key.separator=|", "--property", "null.marker=NULL", "--property", "no.such=1",
        "--line-reader", READERS[1], "--sync", "--compression-codec", "--max-memory-bytes", "1000000",
        "--max-block-ms", "20000", "--metadata-expiry-ms", "60000", "--socket-buffer-size", "-1",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"unknown reader property 'no.such'" in done.stderr
    assert sent(broker, topic, 2) == [
        (b"k1", "vé".encode(), [("a", b"1"), ("b", b"2")]),
        (b"k2", None, [("c", b"3")]),
    ]


@pytest.mark.parametrize(
    ("options", "idempotent"),
    [
        (Options("t"), True),
        (Options("t", acks="-1"), True),
        (Options("t", acks="1"), False),
        (Options("t", producer_property=["acks=1"]), False),
        (Options("t", retries=0), False),
        (Options("t", producer_property=["max.in.flight.requests.per.connection=6"]), False),
        (Options("t", producer_property=["enable.idempotence=false"]), "false"),
    ],
)
def test_idempotence_is_on_unless_a_setting_excludes_it(options: Options, idempotent: bool | str) -> None:
    assert settings(options)["enable.idempotence"] == idempotent


def test_the_codec_without_a_name_is_gzip() -> None:
    assert app.prepared(["--compression-codec", "--sync"]) == ["--compression-codec", "gzip", "--sync"]


@pytest.mark.slow
def test_the_broker_s_reason_for_refusing_a_record_is_printed(on_broker: Parley, broker: Broker, topic: str) -> None:
    on_broker("configs", "--alter", "--topic", topic, "--add-config", "cleanup.policy=compact")
    done = send(broker, topic, b"no key\n")
    assert done.returncode == 1
    assert b"1 record not acknowledged" in done.stderr
    assert b"must have a key" in done.stderr
    assert b"(INVALID_RECORD)" in done.stderr


@pytest.mark.slow
def test_settings_of_java_clients_are_translated_or_ignored_with_a_warning(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "producer.properties").write_text(
        "key.serializer=org.apache.kafka.common.serialization.StringSerializer\nbuffer.memory=33554432\n"
        "max.block.ms=1\nmax.request.size=1048576\nno.such=1\n"
    )
    done = send(broker, topic, b"v\n", "--producer.config", str(tmp_path / "producer.properties"))
    assert done.returncode == 0
    assert done.stderr.decode() == (
        "Warning: these client settings have no effect here: key.serializer, max.block.ms, no.such.\n"
    )


@pytest.mark.parametrize("words", [(), ("--sync",)])
def test_a_user_without_the_right_to_write_is_told_which_right_it_is(
    parley: Parley, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """An idempotent producer gets no id then, which is a fatal error to librdkafka."""
    authorizer = "kafka.security.authorizer.AclAuthorizer"
    with Broker(authorizer_class_name=authorizer, allow_everyone_if_no_acl_found="true") as broker:
        reach = ("--bootstrap-server", broker.bootstrap_servers)
        assert parley("topics", "--create", "--topic", "t", *reach).code == 0
        for rule in (
            ("--allow-principal", "User:*", "--operation", "Read", "--topic", "t"),
            ("--deny-principal", "User:*", "--operation", "Write", "--topic", "*"),
            ("--deny-principal", "User:*", "--operation", "IdempotentWrite", "--cluster"),
        ):
            assert parley("acls", "--add", *rule, *reach).code == 0
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"one\n" * 1000)))
        done = parley("produce", "--topic", "t", *words, *reach)
    assert done.code == 1
    assert "The user lacks the right Write on the topic. An administrator grants it: `parley acls --add" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--line-reader", "my.Own"), "Unknown line reader 'my.Own'"),
        (("--request-required-acks", "7"), "--request-required-acks takes all, -1, 0 or 1, not '7'."),
        (("--compression-codec", "rar"), "The client cannot be created"),
        (("--topic", "a/b"), "contains characters other than ASCII letters, digits, '.', '_' and '-'."),
        (("--property", "null.marker=\t"), "null.marker and key.separator may not be equal"),
        (("--property", "key.separator="), "may not be empty"),
        (("--property", "parse.headers=true", "--property", "headers.delimiter=,"), "may not be equal"),
    ],
)
def test_impossible_requests_are_reported(on_broker: Parley, topic: str, words: tuple[str, ...], reason: str) -> None:
    done = on_broker("produce", "--topic", topic, *words)
    assert done.code == 1
    assert reason in done.err


@pytest.mark.slow
def test_a_producer_without_an_id_is_told_why(parley: Parley, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka asks again for five minutes, without a message."""

    async def refuse(ids: ProducerIds) -> int:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    monkeypatch.setattr(ProducerIds, "take", refuse)
    monkeypatch.setattr(sending, "_PATIENCE_S", 0.1)
    with Broker() as broker:
        words = ("produce", "--bootstrap-server", broker.bootstrap_servers, "--topic", "t", "--producer-property")
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"one\n")))
        done = parley(*words, "message.timeout.ms=1000")
        assert done.code == 1
        warning, error = done.err.splitlines()
        why = "the cluster assigns no producer id (COORDINATOR_LOAD_IN_PROGRESS): its coordination store may be down"
        assert warning.startswith(f"Warning: no record is acknowledged: {why}")
        assert error.startswith(f"Error: 1 record not acknowledged; the last one: Local: Message timed out: {why}")
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"one\n")))
        assert parley(*words, "enable.idempotence=false").code == 0


@pytest.mark.slow
def test_lost_brokers_give_one_warning() -> None:
    """The log of librdkafka stays hidden; a single warning says that no broker responds any more."""
    with Broker() as broker:
        address = broker.bootstrap_servers
        command = preloaded_command("produce", "--bootstrap-server", broker.bootstrap_servers)
        process = subprocess.Popen(
            [*command, "--topic", "t", "--sync", "--producer-property", "message.timeout.ms=3000"],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0,
                             "allow.auto.create.topics": True})  # fmt: skip
        consumer.assign([TopicPartition("t", 0, 0)])
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"one"
        consumer.close()
    _, told = process.communicate(b"two\n", timeout=60)
    lines = told.decode().splitlines()
    assert lines[0] == f"Warning: no broker responds at {address}; retrying."
    assert lines[1].startswith("Error: 1 record not acknowledged")
    assert len(lines) == 2
    assert process.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("produce", "--topic", "t"),
        ("produce", "--topic", "t", "--max-block-ms", "3600000"),  # a refusal is final, whatever the timeout
        ("consume", "--topic", "t"),
        ("consume", "--topic", "t", "--partition", "0", "--offset", "-1"),
        ("consume", "--topic", "t", "--consumer-property", "group.protocol=consumer"),
        ("perf", "produce", "--topic", "t", "--num-records", "1", "--record-size", "1", "--throughput", "-1"),
        ("perf", "consume", "--topic", "t", "--num-records", "1"),
    ],
)
def test_if_no_broker_responds_the_error_says_what_to_do(parley: Parley, words: tuple[str, ...]) -> None:
    address = f"127.0.0.1:{free_port()}"
    typed = parley(*words, "--bootstrap-server", address)
    assert (typed.code, typed.out) == (1, "")
    # Clients that other tests have left in this process may log lines about other brokers meanwhile.
    (line,) = [line for line in typed.err.splitlines() if not (line.startswith("%") and address not in line)]
    assert line.startswith("Error: no broker responds at 127.0.0.1:")
    assert "parley start" in line


def test_verbose_shows_the_client_s_log(parley: Parley) -> None:
    typed = parley("consume", "--topic", "t", "--bootstrap-server", f"127.0.0.1:{free_port()}", "--verbose")
    assert typed.code == 1
    assert "FAIL" in typed.err


def test_parse_line() -> None:
    keyed = LineFormat(parse_key=True)
    assert parse_line(b"k\tv\tw", keyed, 1) == InputRecord(b"k", b"v\tw", ())
    with pytest.raises(CommandError, match="No key separator found on line number 7"):
        parse_line(b"v", keyed, 7)
    assert parse_line(b"v", LineFormat(parse_key=True, ignore_error=True), 1) == InputRecord(None, b"v", ())
