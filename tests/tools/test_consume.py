"""``parley consume``: what it prints, its formatters and deserializers, its options, and what it waits for."""

from __future__ import annotations

import json
import struct
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from parley import Broker
from parley.tools.cli.consume.deserializers import NAMES, WrongSize, deserializer, text
from parley.tools.cli.consume.formatting import FORMATTERS, formatter
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.librdkafka import translated
from tests.support.preloaded import preloaded_command
from tests.tools.conftest import Parley


def put(broker: Broker, topic: str, *values: bytes | None, key: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, key, partition=0, headers=[("h", b"1"), ("h", b"2")])
    producer.flush()


def test_print_properties(on_broker: Parley, broker: Broker, topic: str) -> None:
    put(broker, topic, b"v", None, key=b"k")
    shown = on_broker(
        "consume", "--topic", topic, "--from-beginning", "--max-messages", "2",
        "--property", "print.key=true", "--property", "print.partition=true", "--formatter-property", "key.separator=|",
        "--property", "print.offset=true", "--property", "print.headers=true", "--property", "null.literal=nil",
        "--property", "print.delivery=true",
    )  # fmt: skip
    assert shown.code == 0
    assert shown.lines == [
        "Partition:0|Offset:0|Delivery:NOT_PRESENT|h:1,h:2|k|v",
        "Partition:0|Offset:1|Delivery:NOT_PRESENT|h:1,h:2|k|nil",
    ]
    assert "Processed a total of 2 messages" in shown.err


def test_property_options_override_the_formatter_file(
    on_broker: Parley, broker: Broker, topic: str, tmp_path: Path
) -> None:
    put(broker, topic, b"v", key=b"k")
    (tmp_path / "format").write_text("print.key=true\nkey.separator=\\t\nprint.nonsense=1\n")
    words = (
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "1",
        "--formatter-config",
        str(tmp_path / "format"),
    )
    shown = on_broker("consume", *words)
    assert shown.out == "k\tv\n"
    assert "unknown formatter property 'print.nonsense'" in shown.err
    assert on_broker("consume", *words, "--property", "print.key=false").out == "v\n"


def test_bytes_that_are_no_text(on_broker: Parley, broker: Broker, topic: str) -> None:
    put(broker, topic, struct.pack(">i", -5), key=struct.pack(">q", 7))
    words = ("--topic", topic, "--from-beginning", "--max-messages", "1", "--property", "print.key=true")
    package = "org.apache.kafka.common.serialization."
    kinds = (
        "--key-deserializer",
        f"{package}LongDeserializer",
        "--value-deserializer",
        f"{package}IntegerDeserializer",
    )
    assert on_broker("consume", *words, *kinds).out == "7\t-5\n"
    assert json.loads(on_broker("consume", *words, *kinds, "--json").out)["value"] == -5
    wrong = on_broker("consume", *words, "--value-deserializer", "LongDeserializer")
    assert (wrong.code, "Size of data received by LongDeserializer is not 8" in wrong.err) == (1, True)
    skipped = on_broker("consume", *words, "--value-deserializer", "LongDeserializer", "--skip-message-on-error")
    assert (skipped.code, skipped.out) == (0, "")
    unknown = on_broker("consume", *words, "--value-deserializer", "my.Own", "--property", "print.value=false")
    assert "unknown deserializer 'my.Own'" in unknown.err


@pytest.mark.slow
def test_noop_formatter_prints_nothing(on_broker: Parley, broker: Broker, topic: str) -> None:
    put(broker, topic, b"v")
    words = ("--topic", topic, "--from-beginning", "--max-messages", "1", "--formatter")
    assert on_broker("consume", *words, "org.apache.kafka.tools.consumer.NoOpMessageFormatter").out == ""
    logged = on_broker("consume", *words, "kafka.tools.LoggingMessageFormatter")
    assert logged.out == "v\n"
    assert ", key:null, value:v" in logged.err
    assert "deprecated" in logged.err
    unknown = on_broker("consume", *words, "my.Own")
    assert (unknown.code, "Unknown formatter 'my.Own'" in unknown.err) == (1, True)


@pytest.mark.slow
def test_offsets_and_groups_as_json(on_broker: Parley, broker: Broker, topic: str) -> None:
    put(broker, topic, b"v")
    group = f"group-of-{topic}"
    on_broker("consume", "--topic", topic, "--from-beginning", "--group", group, "--max-messages", "1")
    offsets = whole(on_broker, "__consumer_offsets", "OffsetsMessageFormatter")
    assert [one["value"]["data"]["offset"] for one in offsets if one["key"]["data"]["group"] == group] == [1]
    groups = whole(on_broker, "__consumer_offsets", "GroupMetadataMessageFormatter")
    kinds = {one["key"]["type"] for one in groups if one["key"]["data"]["group"] == group}
    assert kinds == {2}


def whole(on_broker: Parley, topic: str, formatter: str) -> list[Any]:
    """Format all records of a topic with a formatter that writes JSON."""
    found: list[Any] = []
    for line in on_broker("offsets", "--topic", topic).lines:
        _, partition, end = line.split(":")
        if end != "0":
            words = ("--topic", topic, "--partition", partition, "--from-beginning", "--max-messages", end)
            found += map(json.loads, on_broker("consume", *words, "--formatter", formatter).lines)
    return found


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "Exactly one of the following arguments is required: [topic], [include]"),
        (("--topic", "t", "--include", "t"), "Exactly one of the following arguments is required: [topic], [include]"),
        (("--include", "t", "--partition", "0"), "The topic is required when partition is specified."),
        (("--topic", "t", "--offset", "5"), "The partition is required when offset is specified."),
        (("--topic", "t", "--offset", "earliest", "--from-beginning"), "The partition is required when offset is"),
        (
            ("--topic", "t", "--partition", "0", "--offset", "5", "--from-beginning"),
            "Options from-beginning and offset cannot be specified together.",
        ),
        (("--topic", "t", "--partition", "0", "--offset", "x"), "The provided offset value 'x' is incorrect."),
        (("--topic", "t", "--partition", "-1"), "The partition must be 0 or more"),
        (
            ("--topic", "t", "--group", "a", "--consumer-property", "group.id=b"),
            "do not match. Detected group ids: 'a'",
        ),
        (("--topic", "t", "--group", "a", "--partition", "0"), "group and partition cannot be specified together."),
        (
            ("--topic", "t", "--from-beginning", "--consumer-property", "auto.offset.reset=latest"),
            "Can't simultaneously specify --from-beginning and 'auto.offset.reset=latest'",
        ),
        (("--topic", "t", "--isolation-level", "x"), "The client cannot be created"),
        (("--topic", "t", "--consumer-property", "error_cb=x"), "The client cannot be created"),
        (("--topic", "a/b"), "contains characters other than ASCII letters, digits, '.', '_' and '-'."),
        (("--share",), "--share needs --topic."),
        (("--topic", "t", "--release"), "--reject, --release and --reject-message-on-error need --share."),
        (("--share", "--topic", "t", "--reject", "--release"), "At most one of --reject and --release may be"),
        (("--share", "--topic", "t", "--partition", "0"), "--partition cannot be used with --share."),
        (("--share", "--topic", "t", "--offset", "0"), "--offset cannot be used with --share."),
        (("--share", "--topic", "t", "--include", "u"), "--include cannot be used with --share."),
        (("--share", "--topic", "t", "--skip-message-on-error"), "--skip-message-on-error cannot be used with"),
        (
            ("--share", "--topic", "t", "--group", "g", "--from-beginning"),
            "Use `parley configs --alter --entity-type groups --entity-name g --add-config "
            "share.auto.offset.reset=earliest`",
        ),
        (("--share", "--topic", "t", "--isolation-level", "read_committed"), "share.isolation.level=read_committed`"),
        (
            ("--share", "--topic", "t", "--group", "a", "--consumer-property", "group.id=b"),
            "do not match. Detected group ids: 'a', 'b'",
        ),
        (
            ("--share", "--topic", "t", "--consumer-property", "auto.offset.reset=earliest"),
            "`auto.offset.reset` is not applicable for share consumer",
        ),
    ],
)
def test_impossible_requests_are_reported(on_broker: Parley, words: tuple[str, ...], reason: str) -> None:
    typed = on_broker("consume", *words)
    assert typed.code == 1
    assert reason in typed.err


def test_a_different_group_in_the_file_is_refused(parley: Parley, tmp_path: Path) -> None:
    (tmp_path / "consumer.properties").write_text("group.id=b\n")
    typed = parley(
        "consume", "--topic", "t", "--group", "a", "--consumer.config", str(tmp_path / "consumer.properties")
    )
    assert (typed.code, "Detected group ids: 'a', 'b'" in typed.err) == (1, True)


def test_a_missing_topic_is_created_if_allowed(on_broker: Parley, topic: str) -> None:
    name = f"auto-{topic}"
    allowed = ("--consumer-property", "allow.auto.create.topics=true")
    waited = on_broker("consume", "--topic", name, "--timeout-ms", "1000", *allowed)
    assert (waited.code, waited.out) == (0, "")
    assert name in on_broker("topics", "--list").lines


def test_consume_waits_for_a_missing_topic(on_broker: Parley, broker: Broker, topic: str) -> None:
    name = f"later-{topic}"
    silent = on_broker("consume", "--topic", name, "--timeout-ms", "500")
    assert (silent.code, silent.out) == (1, "")
    assert f"the topic '{name}' does not exist (UNKNOWN_TOPIC_OR_PARTITION); waiting for it" in silent.err
    assert f"Error: The topic '{name}' does not exist. `parley topics --create" in silent.err
    assert name not in on_broker("topics", "--list").lines
    sender = threading.Timer(0.5, put, (broker, name, b"late"))
    sender.start()
    came = on_broker("consume", "--topic", name, "--from-beginning", "--max-messages", "1")
    sender.join()
    assert (came.code, came.out) == (0, "late\n")


def test_consume_waits_for_a_missing_partition(on_broker: Parley, topic: str) -> None:
    typed = on_broker("consume", "--topic", topic, "--partition", "9", "--timeout-ms", "300")
    assert (typed.code, typed.out) == (0, "")
    assert f"the topic '{topic}' has no partition 9, only 0 to 1; waiting for it." in typed.err


def test_shutdown_complete_is_printed_for_system_tests(on_broker: Parley, topic: str) -> None:
    typed = on_broker("consume", "--topic", topic, "--timeout-ms", "100", "--enable-systest-events")
    assert typed.lines == ["shutdown_complete"]


def test_settings_of_java_clients_are_translated_or_ignored_with_a_warning(
    on_broker: Parley, broker: Broker, topic: str, tmp_path: Path
) -> None:
    put(broker, topic, b"v")
    (tmp_path / "consumer.properties").write_text(
        "key.deserializer=org.apache.kafka.common.serialization.StringDeserializer\nmetric.reporters=\n"
        "client.dns.lookup=use_all_dns_ips\nsasl.jaas.config=secret\nfetch.max.wait.ms=100\nno.such.setting=1\n"
        "partition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor,"
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor\n"
    )
    words = ("--topic", topic, "--from-beginning", "--max-messages", "1")
    typed = on_broker("consume", *words, "--consumer.config", str(tmp_path / "consumer.properties"))
    assert (typed.code, typed.out) == (0, "v\n")
    warnings = [line for line in typed.err.splitlines() if line.startswith("Warning")]
    assert warnings == [
        "Warning: these client settings have no effect here: "
        "key.deserializer, metric.reporters, no.such.setting, sasl.jaas.config."
    ]
    assert "secret" not in typed.err


def test_the_consumer_protocol_works_or_is_reported_as_unsupported(
    on_broker: Parley, broker: Broker, topic: str
) -> None:
    put(broker, topic, b"v")
    words = ("--topic", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")
    typed = on_broker("consume", *words, "--consumer-property", "group.protocol=CONSUMER")
    supported = typed.code == 0 and typed.out == "v\n"
    assert supported or "The cluster does not support the new CONSUMER group protocol." in typed.err


def test_a_group_of_another_type_is_named(on_broker: Parley, broker: Broker, topic: str) -> None:
    put(broker, topic, b"v")
    made = on_broker(
        "share-groups", "--reset-offsets", "--group", "jobs", "--topic", topic, "--to-earliest", "--execute"
    )
    assert made.code == 0
    typed = on_broker("consume", "--topic", topic, "--group", "jobs", "--timeout-ms", "20000")
    assert typed.code == 1
    assert "Inconsistent group protocol. The id belongs to a group of another type" in typed.err


@pytest.mark.slow
def test_records_are_printed_as_they_arrive(broker: Broker, topic: str) -> None:
    """A record is printed immediately, even if no more records follow."""
    import subprocess

    words = ["consume", "--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--from-beginning"]
    with subprocess.Popen(preloaded_command(*words), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        put(broker, topic, b"first")
        assert process.stdout.readline() == b"first\n"
        put(broker, topic, b"second")
        assert process.stdout.readline() == b"second\n"
        process.terminate()


@pytest.mark.parametrize(
    ("name", "data", "shown"),
    [
        ("StringDeserializer", b"a\xc3\xa9", "aé"),
        ("ByteArrayDeserializer", b"ab", "ab"),
        ("BytesDeserializer", b"a\x00\\", "a\\x00\\x5C"),
        ("BooleanDeserializer", b"\1", "true"),
        ("ShortDeserializer", b"\xff\xfe", "-2"),
        ("IntegerDeserializer", struct.pack(">i", 123), "123"),
        ("LongDeserializer", struct.pack(">q", -(2**62)), str(-(2**62))),
        ("FloatDeserializer", struct.pack(">f", 0.1), "0.1"),
        ("FloatDeserializer", struct.pack(">f", 3.4028235e38), "3.4028235E38"),
        ("DoubleDeserializer", struct.pack(">d", 1.0), "1.0"),
        ("DoubleDeserializer", struct.pack(">d", -1e7), "-1.0E7"),
        ("DoubleDeserializer", struct.pack(">d", 1234567.5), "1234567.5"),
        ("DoubleDeserializer", struct.pack(">d", 0.00012), "1.2E-4"),
        ("DoubleDeserializer", struct.pack(">d", 1.25e300), "1.25E300"),
        ("DoubleDeserializer", struct.pack(">d", float("nan")), "NaN"),
        ("UUIDDeserializer", str(uuid.UUID(int=5)).encode(), str(uuid.UUID(int=5))),
        ("VoidDeserializer", b"", "null"),
    ],
)
def test_deserializers(name: str, data: bytes, shown: str) -> None:
    how = deserializer(name)
    assert how is not None
    assert text(how(data)) == shown.encode()


@pytest.mark.parametrize("name", [one for one in NAMES if not one.startswith(("String", "Byte"))])
def test_bytes_of_another_kind_are_refused(name: str) -> None:
    how = deserializer(f"org.apache.kafka.common.serialization.{name}")
    assert how is not None
    with pytest.raises(WrongSize):
        how(b"no") if name != "ShortDeserializer" else how(b"not")


def test_formatters() -> None:
    for name in FORMATTERS:
        assert callable(formatter(name.rpartition(".")[2], {}))
    with pytest.raises(CommandError):
        formatter("nonsense", {})


def test_translated() -> None:
    assert translated({"buffer.memory": "33554432", "send.buffer.bytes": "-1", "acks": "1"}) == {
        "queue.buffering.max.kbytes": "32768",
        "socket.send.buffer.bytes": "0",
        "acks": "1",
    }
    Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0, **translated({
        "receive.buffer.bytes": "65536", "max.request.size": "1048576", "fetch.max.wait.ms": "500",
    })}).close()  # fmt: skip


def test_a_user_without_rights_is_told_how_to_get_them(parley: Parley) -> None:
    authorizer = "kafka.security.authorizer.AclAuthorizer"
    with Broker(authorizer_class_name=authorizer, allow_everyone_if_no_acl_found="true") as broker:
        reach = ("--bootstrap-server", broker.bootstrap_servers)
        for name in ("open", "closed"):
            assert parley("topics", "--create", "--topic", name, *reach).code == 0
        for resource in (("--topic", "closed"), ("--group", "other")):
            assert parley("acls", "--add", "--deny-principal", "User:*", *resource, *reach).code == 0
        read = parley("consume", "--topic", "closed", *reach)
        joined = parley("consume", "--topic", "open", "--group", "other", *reach)
    assert "cannot be read: " in read.err
    assert "The user lacks the right Read on the topic. An administrator grants it: `parley acls --add" in read.err
    assert "The user needs the right Read on the group, which includes Describe. An administrator" in joined.err
