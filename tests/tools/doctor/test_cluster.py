"""``parley doctor`` on clusters in this process: each fault is injected, and found under its name.

The tests share a cluster, so each test checks only its own findings. `tests/system/test_doctor.py` contains the tests
that need processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from parley import Broker, Cluster
from parley.protocol.client import Client
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.tools.cli.reassign.requests import reassign
from parley.tools.fault_proxy import FaultProxy
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.tools.conftest import Parley

pytestmark = pytest.mark.slow

SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "broker.rack": "a",
    "broker.host.label": "machine-1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.partition.verification.enable": "false",
    "transaction.max.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}
UNKNOWN_PRODUCER = 7_777

Found = dict[str, list[dict[str, Any]]]
Doctor = Callable[..., Found]
"""Examines a cluster. Returns the findings by name."""


@pytest.fixture
def doctor(parley: Parley) -> Doctor:
    def examine(*words: str, interval: str = "0") -> Found:
        typed = parley("doctor", *words, "--interval", interval, "--output", "json")
        assert typed.out, typed.err
        data = json.loads(typed.out)
        assert typed.code == data["exitCode"]
        found: Found = {}
        for each in data["findings"]:
            found.setdefault(each["name"], []).append(each)
        found["not-examined"] = [{"text": each["reason"]} for each in data["notExamined"] if each["failed"]]
        return found

    return examine


def texts(found: Found, name: str) -> str:
    return "\n".join(each["text"] for each in found.get(name, ()))


def until_found(name: str, text: str, examine: Callable[[], Found]) -> Found:
    """Examine again until the finding appears, because brokers notice some faults a little later."""
    while True:
        found = examine()
        if re.search(text, texts(found, name)):
            return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(SETTINGS) as running:
        yield running


def create_with(servers: str, name: str, *replicas: list[int], **config: str) -> None:
    """Create a topic whose partitions have these replicas."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=each)
            for index, each in enumerate(replicas)
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in config.items()
        ],
    )

    async def ask() -> None:
        async with Client(servers) as client:
            request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
            answer = await client.send(request, node=await client.controller())
            assert answer.topics[0].error_code == 0, answer

    asyncio.run(ask())


def produce(servers: str, topic: str, values: list[bytes], *, key: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": "0"})
    for value in values:
        producer.produce(topic, value, key, partition=0)
        assert producer.flush(60) == 0


def test_leaders_racks_and_features(cluster: Cluster, doctor: Doctor, parley: Parley) -> None:
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    create_with(cluster.bootstrap_servers, "skewed", *([[1, 2]] * 12))
    assert parley("features", "downgrade", "--feature", "transaction.version=1", *servers).code == 0
    found = until_found("features-not-finalized", "transaction.version", lambda: doctor(*servers))
    assert "broker 1 leads 12 of" in texts(found, "leader-skew")
    assert "all 3 brokers are in rack a" in texts(found, "racks-incomplete")
    assert "up to 2 replicas of a partition share a machine" in texts(found, "hosts-too-few")
    assert found["not-examined"] == []


def test_host_labels_are_shown_and_clients_skip_them(cluster: Cluster, parley: Parley) -> None:
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    for words in (("metadata",), ("cluster", "list-endpoints")):
        found = json.loads(parley(*words, *servers, "--output", "json").out)
        members = found["brokers"] if isinstance(found, dict) else found
        assert [each["hostLabel"] for each in members] == ["machine-1"] * 3
    assert re.search(r"RACK +HOST LABEL +STATE", parley("metadata", *servers).out)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    described = client.describe_cluster().result()
    assert [node.rack for node in described.nodes] == ["a"] * 3


def test_a_setting_of_one_broker_differs(cluster: Cluster, doctor: Doctor, parley: Parley) -> None:
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    alter = "parley configs --alter --entity-type brokers --entity-name 2"
    words = (*alter.split()[1:], *servers)
    assert parley(*words, "--add-config", "min.insync.replicas=3").code == 0
    found = until_found("settings-differ", "min.insync.replicas", lambda: doctor(*servers))["settings-differ"][0]
    assert found["evidence"] == ["min.insync.replicas: 1 on broker 1, 3; 3 on broker 2"]
    assert found["next"] == [f"{alter} --delete-config min.insync.replicas"]
    assert parley(*words, "--delete-config", "min.insync.replicas").code == 0


def test_groups(cluster: Cluster, doctor: Doctor) -> None:
    """One group has a member that commits nothing, the other group has no members. Meanwhile, records are added."""
    servers = cluster.bootstrap_servers
    create_with(servers, "read", [1, 2, 3])
    produce(servers, "read", [b"first"])
    settings = {"bootstrap.servers": servers, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    for group in ("abandoned", "stuck"):
        consumer = Consumer({**settings, "group.id": group})
        consumer.subscribe(["read"])
        while (message := consumer.poll(60)) is None or message.error():
            pass
        consumer.commit(message=message, asynchronous=False)
        if group == "abandoned":
            consumer.close()
    produce(servers, "read", [b"second"])
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.01):
            produce(servers, "read", [b"more"])

    producing = threading.Thread(target=go_on)
    producing.start()
    try:
        found = until_found(
            "group-lag-growing",
            "the lag of group abandoned grows",
            lambda: doctor("--bootstrap-server", servers, interval="1"),
        )
    finally:
        over.set()
        producing.join()
        consumer.close()
    assert "it has no members" in texts(found, "group-lag-growing")
    assert "group stuck has 1 member and committed nothing in 1 s" in texts(found, "group-stuck")
    assert "abandoned" not in texts(found, "group-stuck")
    assert "__consumer_offsets has 1 replica, but could have 3" in texts(found, "internal-topic-few-replicas")


def leave_open(servers: str, topic: str) -> None:
    """Write a record of a transaction that no coordinator knows."""
    batch = build([Record(0, 1000, None, b"lost", ())], producer_id=UNKNOWN_PRODUCER, producer_epoch=3,
                  base_sequence=0, transactional=True)  # fmt: skip
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]

    async def leave() -> None:
        async with Client(servers) as client:
            node = await client.leader(topic, 0)
            request = ProduceRequest(transactional_id="none", acks=-1, timeout_ms=30_000, topic_data=topics)
            answer = await client.send(request, node=node, version=9)
            assert answer.responses[0].partition_responses[0].error_code == 0

    asyncio.run(leave())


def test_a_hanging_transaction(cluster: Cluster, doctor: Doctor, parley: Parley) -> None:
    create_with(cluster.bootstrap_servers, "hung", [2, 1, 3])
    leave_open(cluster.bootstrap_servers, "hung")
    (one,) = doctor("--bootstrap-server", cluster.bootstrap_servers)["hanging-transaction"]
    assert "a transaction hangs in hung-0" in one["text"]
    assert one["since"] is not None
    assert one["next"][1] == "parley transactions abort --topic hung --partition 0 --start-offset 0"
    for broker in "123":  # a follower has the transaction, too
        words = ("--broker-id", broker, "--max-transaction-timeout", "0", "--bootstrap-server")
        typed = parley("transactions", "find-hanging", *words, cluster.bootstrap_servers)
        assert "hung" in typed.out, typed.err


def test_a_reassignment_that_stands_still(cluster: Cluster, doctor: Doctor, parley: Parley) -> None:
    """The throttle stops the move after the first piece."""
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    create_with(cluster.bootstrap_servers, "moving", [1])
    produce(cluster.bootstrap_servers, "moving", [os.urandom(500_000) for _ in range(20)])
    for kind, name, settings in (
        ("brokers", "1", "leader.replication.throttled.rate=1"),
        ("topics", "moving", "leader.replication.throttled.replicas=*"),
    ):
        words = ("--alter", "--entity-type", kind, "--entity-name", name, "--add-config", settings)
        assert parley("configs", *words, *servers).code == 0

    async def move(replicas: list[int] | None) -> None:
        async with Client(cluster.bootstrap_servers) as client:
            assert await reassign(client, {("moving", 0): replicas}) == {}

    asyncio.run(move([2]))
    until_found(
        "reassignment-stuck", "the reassignment of moving-0 has not advanced in 1 s",
        lambda: doctor(*servers, interval="1"),
    )  # fmt: skip
    asyncio.run(move(None))


def test_brokers_die(cluster: Cluster, doctor: Doctor) -> None:
    """First, broker 2 is restarted and does not lead again. Then broker 3 is killed."""
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    create_with(cluster.bootstrap_servers, "preferred", [2, 1, 3], min_insync_replicas="3")
    create_with(cluster.bootstrap_servers, "alone", [3])
    cluster.restart(2)
    found = until_found("preferred-leader-not-leading", "does not lead", lambda: doctor(*servers))
    assert "parley elect-leaders" in found["preferred-leader-not-leading"][0]["next"][1]
    cluster.kill(3)
    try:  # until each is found: broker 2 may not be back in every ISR, and the doctor asks several brokers
        for name, text in (
            ("under-min-isr", "writes with acks=all are rejected"),
            ("broker-down", "broker 3 is down"),
            ("isr-shrunk", "broker 3 is missing from the ISR of"),
            ("partition-offline", "no leader for"),
        ):
            until_found(name, text, lambda: doctor(*servers))
    finally:
        cluster.restart(3)


# --- One broker ---


def test_a_throttled_client(doctor: Doctor, parley: Parley) -> None:
    with Broker({"metrics.listener": f"127.0.0.1:{free_port()}", "broker.id": "1"}) as broker:
        servers = ("--bootstrap-server", broker.bootstrap_servers)
        create_with(broker.bootstrap_servers, "throttled", [1])
        words = ("--entity-type", "clients", "--entity-name", "greedy", "--add-config", "producer_byte_rate=10000")
        assert parley("configs", "--alter", *words, *servers).code == 0
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "greedy", "linger.ms": "0"})
        for _ in range(3):
            producer.produce("throttled", bytes(200_000), partition=0)
            producer.poll(0.1)
        found = until_found("client-throttled", "client id greedy", lambda: doctor(*servers))
        producer.purge()
    assert "by the quota produce" in texts(found, "client-throttled")


def test_advertised_addresses(doctor: Doctor) -> None:
    dead, port = free_port(), free_port()
    settings = {"listeners": f"PLAINTEXT://127.0.0.1:{port}", "broker.id": "1"}
    with Broker({**settings, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{dead}"}):
        found = doctor("--bootstrap-server", f"127.0.0.1:{port}")
        assert f"broker 1 at 127.0.0.1:{dead} does not respond to this client" in texts(found, "broker-unreachable")
    port = free_port()
    settings["listeners"] = f"PLAINTEXT://0.0.0.0:{port}"
    with Broker({**settings, "advertised.listeners": f"PLAINTEXT://localhost:{port}"}):
        found = doctor("--bootstrap-server", f"{socket.gethostname()}:{port}")
        assert f"broker 1 advertises localhost:{port}" in texts(found, "advertised-localhost")


@pytest.mark.parametrize(
    ("name", "days"), [("certificate-expired", -2), ("certificate-expiring", 5)], ids=["expired", "expiring"]
)
def test_certificates(doctor: Doctor, tmp_path: Path, name: str, days: int) -> None:
    authority = Authority()
    issued = authority.issue("localhost", "localhost", "127.0.0.1", expires=datetime.now(UTC) + timedelta(days))
    trust = f"ssl.truststore.type=PEM\nssl.truststore.location={authority.write(tmp_path / 'ca.pem')}\n"
    port = free_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:{port}",  # brokers do not use an expired certificate
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(issued.write_pem(tmp_path / "broker.pem")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
    }
    client = tmp_path / "client.properties"
    client.write_text(f"security.protocol=SSL\n{trust}")
    with Broker(settings):
        found = doctor("--bootstrap-server", f"127.0.0.1:{port}", "--command-config", str(client))
    assert f"the certificate of 127.0.0.1:{port}" in texts(found, name)
    assert found[name][0]["severity"] == ("error" if days < 0 else "warning")


def test_a_client_without_rights_learns_which_brokers_these_are(parley: Parley, tmp_path: Path) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    port = free_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{port}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} user_mallory="m";',
    }
    client = tmp_path / "client.properties"
    login = f'sasl.mechanism=PLAIN\nsasl.jaas.config={module} username="mallory" password="m";\n'
    client.write_text(f"security.protocol=SASL_PLAINTEXT\n{login}")
    with Broker(settings):
        out = parley("doctor", "--bootstrap-server", f"127.0.0.1:{port}", "--command-config", str(client)).out
    assert "(Parley): 1 broker" in out


def test_a_broker_that_stands_still_does_not_hold_up_the_doctor(parley: Parley) -> None:
    with Broker() as broker, FaultProxy("127.0.0.1", broker.port) as link:
        link.cut()
        typed = parley("doctor", "--bootstrap-server", f"127.0.0.1:{link.port}", "--time-limit", "2")
    assert typed.code == 3
    assert "did not describe the cluster in time" in typed.err or "did not respond" in typed.err
