"""Apache Kafka's own command-line tools, of the newest version and of 3.9."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import KAFKA_3, KAFKA_4, run_java
from tests.support.kafka_tools import Typed, run_tool
from tests.system.running import BrokerProcess

PACKAGE = "org.apache.kafka.tools"
CLASSES = {
    "topics": f"{PACKAGE}.TopicCommand",
    "console-consumer": f"{PACKAGE}.consumer.ConsoleConsumer",
    "consumer-groups": f"{PACKAGE}.consumer.group.ConsumerGroupCommand",
    "configs": "kafka.admin.ConfigCommand",
    "get-offsets": f"{PACKAGE}.GetOffsetShell",
    "delete-records": f"{PACKAGE}.DeleteRecordsCommand",
    "log-dirs": f"{PACKAGE}.LogDirsCommand",
    "producer-perf-test": f"{PACKAGE}.ProducerPerformance",
    "consumer-perf-test": f"{PACKAGE}.ConsumerPerformance",
    "cluster": f"{PACKAGE}.ClusterTool",
    "e2e-latency": f"{PACKAGE}.EndToEndLatency",
    "features": f"{PACKAGE}.FeatureCommand",
}
OTHER_CLASSES = {
    KAFKA_4: {
        "console-producer": f"{PACKAGE}.ConsoleProducer",
        "broker-api-versions": f"{PACKAGE}.BrokerApiVersionsCommand",
    },
    KAFKA_3: {
        "console-producer": "kafka.tools.ConsoleProducer",
        "broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    },
}
MakeName = Callable[..., str]
MakeTopic = Callable[..., str]


class Tools:
    """Kafka's tools of one version, pointed at a broker."""

    def __init__(self, version: str, bootstrap_servers: str) -> None:
        self.version = version
        self.bootstrap_servers = bootstrap_servers
        self.reader_property = "--reader-property" if version == KAFKA_4 else "--property"
        self.formatter_property = "--formatter-property" if version == KAFKA_4 else "--property"
        self._classes = {**CLASSES, **OTHER_CLASSES[version]}

    def __call__(self, tool: str, *args: str, stdin: str = "", connect: bool = True) -> Typed:
        """Run a tool to its end, with ``--bootstrap-server`` if ``connect``."""
        where = ("--bootstrap-server", self.bootstrap_servers) if connect else ()
        return run_tool(self._classes[tool], *where, *args, version=self.version, stdin=stdin)

    def ok(self, tool: str, *args: str, stdin: str = "", connect: bool = True) -> Typed:
        """Run a tool that must succeed."""
        typed = self(tool, *args, stdin=stdin, connect=connect)
        assert typed.code == 0, typed
        return typed


@pytest.fixture(scope="module", params=[KAFKA_4, pytest.param(KAFKA_3, marks=pytest.mark.soak)])
def tools(request: pytest.FixtureRequest, broker: BrokerProcess) -> Tools:
    return Tools(request.param, broker.bootstrap_servers)


def test_features(tools: Tools) -> None:
    feature = "transaction.version"

    def level() -> str:
        (line,) = [line for line in tools.ok("features", "describe").lines if feature in line]
        return re.sub(r"\s+", " ", line.partition("SupportedMaxVersion: ")[2]).partition(" Epoch")[0]

    assert level() == "2 FinalizedVersionLevel: 2"
    checked = tools.ok("features", "downgrade", "--feature", f"{feature}=1", "--dry-run")
    assert f"{feature} can be downgraded to 1" in checked.out
    assert f"{feature} was disabled" in tools.ok("features", "disable", "--feature", feature).out
    assert level() == "2 FinalizedVersionLevel: 0"
    refused = tools("features", "upgrade", "--feature", f"{feature}=3")
    assert refused.code == 1
    assert f"Invalid update version 3 for feature {feature}" in refused.out + refused.err
    assert f"{feature} was upgraded to 2" in tools.ok("features", "upgrade", "--feature", f"{feature}=2").out
    assert level() == "2 FinalizedVersionLevel: 2"


def test_topics(tools: Tools, new_name: MakeName) -> None:
    topic = new_name()
    created = tools.ok("topics", "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=90000")
    assert f"Created topic {topic}." in created.out
    assert tools("topics", "--create", "--topic", topic).code == 1
    assert topic in tools.ok("topics", "--list").lines
    described = tools.ok("topics", "--describe", "--topic", topic).out
    assert "PartitionCount: 2" in described
    assert "retention.ms=90000" in described
    tools.ok("topics", "--alter", "--topic", topic, "--partitions", "4")
    assert "PartitionCount: 4" in tools.ok("topics", "--describe", "--topic", topic).out
    assert tools.ok("topics", "--describe", "--under-replicated-partitions").out.strip() == ""
    tools.ok("topics", "--delete", "--topic", topic)
    assert topic not in tools.ok("topics", "--list").lines


def test_console_producer_and_consumer(tools: Tools, new_topic: MakeTopic) -> None:
    topic = new_topic()
    lines = "".join(f"k{number}:v{number}\n" for number in range(50))
    properties = (tools.reader_property, "parse.key=true", tools.reader_property, "key.separator=:")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        tools.ok("console-producer", "--topic", topic, "--compression-codec", codec, *properties, stdin=lines)
    shown = tools.ok(
        "console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "250",
        tools.formatter_property, "print.key=true", tools.formatter_property, "print.offset=true",
    )  # fmt: skip
    assert shown.lines == [f"Offset:{n}\tk{n % 50}\tv{n % 50}" for n in range(250)]
    tail = tools.ok("console-consumer", "--topic", topic, "--partition", "0", "--offset", "248", "--max-messages", "2")
    assert tail.lines == ["v48", "v49"]


def test_consumer_groups(tools: Tools, new_topic: MakeTopic, new_name: MakeName) -> None:
    topic, group = new_topic(), new_name("g")
    tools.ok("console-producer", "--topic", topic, stdin="".join(f"{n}\n" for n in range(10)))
    read = ("--topic", topic, "--group", group, "--from-beginning", "--timeout-ms", "60000")
    assert len(tools.ok("console-consumer", *read, "--max-messages", "6").lines) == 6
    assert group in tools.ok("consumer-groups", "--list").lines
    assert tools.ok("consumer-groups", "--list", "--state").out.count(group) == 1
    described = tools.ok("consumer-groups", "--describe", "--group", group)
    row = next(line.split() for line in described.lines if line.startswith(group))
    assert (row[1], row[2], row[4]) == (topic, "0", "10")
    assert "Empty" in tools.ok("consumer-groups", "--describe", "--group", group, "--state").out
    where = ("--group", group, "--topic", topic)
    for how, expected in (
        (("--to-earliest",), "0"),
        (("--to-latest",), "10"),
        (("--shift-by", "-3"), "7"),
        (("--to-offset", "2"), "2"),
        (("--to-datetime", "2020-01-01T00:00:00.000"), "0"),
        (("--by-duration", "P1D"), "0"),
    ):
        reset = tools.ok("consumer-groups", "--reset-offsets", *where, *how, "--execute")
        assert reset.out.split()[-1] == expected, how
    tools.ok("consumer-groups", "--delete-offsets", *where)
    deleted = tools.ok("consumer-groups", "--delete", "--group", group)
    assert "successful" in deleted.out
    assert group not in tools.ok("consumer-groups", "--list").lines


def test_configs(tools: Tools, new_topic: MakeTopic) -> None:
    topic = new_topic()
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tools.ok("configs", "--alter", *entity, "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]")
    described = tools.ok("configs", "--describe", *entity).out
    assert "retention.ms=1000" in described
    assert "cleanup.policy=compact,delete" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=1000" in described
    tools.ok("configs", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in tools.ok("configs", "--describe", *entity).out
    assert tools("configs", "--alter", *entity, "--add-config", "retention.ms=soon").code == 1
    brokers = ("--entity-type", "brokers", "--entity-default")
    tools.ok("configs", "--alter", *brokers, "--add-config", "log.cleaner.threads=2")
    assert "log.cleaner.threads=2" in tools.ok("configs", "--describe", *brokers).out
    tools.ok("configs", "--alter", *brokers, "--delete-config", "log.cleaner.threads")
    every = tools.ok("configs", "--describe", "--all", *entity).out
    assert "segment.bytes=1073741824" in every


def test_offsets_and_deleted_records(tools: Tools, new_topic: MakeTopic, tmp_path: Path) -> None:
    topic = new_topic(partitions=2)
    keyed = (tools.reader_property, "parse.key=true", tools.reader_property, "key.separator=:")
    tools.ok("console-producer", "--topic", topic, *keyed, stdin="".join(f"{n}:{n}\n" for n in range(40)))

    def offsets(time: str) -> list[int]:
        found = tools.ok("get-offsets", "--topic", topic, "--time", time).lines
        assert [line.rpartition(":")[0] for line in found] == [f"{topic}:0", f"{topic}:1"]
        return [int(line.rpartition(":")[2]) for line in found]

    assert offsets("-2") == offsets("earliest") == [0, 0]
    ends = offsets("-1")
    assert sum(ends) == 40
    wanted = [{"topic": topic, "partition": number, "offset": 3} for number in (0, 1)]
    path = tmp_path / "records.json"
    path.write_text(json.dumps({"partitions": wanted, "version": 1}))
    assert tools.ok("delete-records", "--offset-json-file", str(path)).out.count("low_watermark: 3") == 2
    assert offsets("-2") == [3, 3]


def test_log_dirs(tools: Tools, broker: BrokerProcess, new_topic: MakeTopic) -> None:
    topic = new_topic()
    tools.ok("console-producer", "--topic", topic, stdin="x\n")
    shown = tools.ok("log-dirs", "--describe", "--topic-list", topic).lines
    found = json.loads(next(line for line in shown if line.startswith("{")))
    (directory,) = found["brokers"][0]["logDirs"]
    assert directory["logDir"] == str(broker.data)
    (partition,) = directory["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 0


def test_kafkas_tool_shows_the_supported_versions(tools: Tools) -> None:
    shown = tools.ok("broker-api-versions").out
    for api in ("Produce(0)", "Fetch(1)", "Metadata(3)", "JoinGroup(11)", "ApiVersions(18)", "OffsetDelete(47)"):
        line = next(line for line in shown.splitlines() if api in line)
        assert "usable" in line, line
    assert "Cluster ID" in tools.ok("cluster", "cluster-id", "--bootstrap-server", tools.bootstrap_servers,
                                    connect=False).out  # fmt: skip


def test_performance_tools(tools: Tools, new_topic: MakeTopic) -> None:
    topic = new_topic(partitions=3)
    shown = tools.ok(
        "producer-perf-test", "--topic", topic, "--num-records", "20000", "--record-size", "100", "--throughput", "-1",
        "--producer-props", f"bootstrap.servers={tools.bootstrap_servers}", "acks=all", "compression.type=lz4",
        connect=False,
    )  # fmt: skip
    assert "20000 records sent" in shown.out
    counted = tools.ok("consumer-perf-test", "--topic", topic, "--messages", "20000", "--timeout", "60000")
    assert counted.lines[-1].split(", ")[4] == "20000"


def test_verifiable_producer_and_consumer(broker: BrokerProcess, new_topic: MakeTopic, new_name: MakeName) -> None:
    """These two tools finish in JVM shutdown hooks, so each needs a separate JVM."""
    topic = new_topic()
    common = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--max-messages", "200")
    sent = _events(run_java(f"{PACKAGE}.VerifiableProducer", *common, "--acks", "-1"))
    assert sum(event["name"] == "producer_send_success" for event in sent) == 200
    assert sent[-1]["acked"] == 200
    options = ("--group-id", new_name("g"), "--verbose", "--reset-policy", "earliest")
    read = _events(run_java(f"{PACKAGE}.VerifiableConsumer", *common, *options))
    assert [event["offset"] for event in read if event["name"] == "record_data"] == list(range(200))
    assert all(event["success"] for event in read if event["name"] == "offsets_committed")
    assert {"partitions_assigned", "offsets_committed"} <= {event["name"] for event in read}


def _events(written: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.splitlines() if line.startswith("{")]


def test_latency_from_end_to_end(tools: Tools, new_topic: MakeTopic) -> None:
    topic = new_topic()
    words: tuple[str, ...]
    if tools.version == KAFKA_3:
        words = (tools.bootstrap_servers, topic, "100", "all", "100")
    else:
        words = ("--bootstrap-server", tools.bootstrap_servers, "--topic", topic, "--num-records", "100",
                 "--producer-acks", "all", "--record-size", "100")  # fmt: skip
    assert "Percentiles" in tools.ok("e2e-latency", *words, connect=False).out
