"""Transactions, idempotent producers and groups on a cluster secured as in production, while brokers are killed.

Brokers use SASL_SSL between each other, the authorizer is on, and everything has three replicas. The clients' user has
exactly the permissions that Kafka requires. If a check or a login disturbs replication, forwarding or a coordinator, it
shows only here, not on a single broker or without an authorizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from parley.tools.checker import Trial
from tests.broker.security.secured_brokers import MODULES
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.system.clusters import RATE, WAIT_SECONDS, ClusterOfProcesses
from tests.system.conftest import watched
from tests.system.test_exactly_once import PARTITIONS, SETTINGS, Committed, Program, fill, running

pytestmark = pytest.mark.soak  # the secured quickstart, and test_exactly_once.py without logins, are shorter

COPIER = str(Path(__file__).with_name("JavaCopier.java"))
PASSWORD = "secret"
USERS = ("broker", "alice")
RIGHTS = {
    ResourceType.TOPIC: (AclOperation.READ, AclOperation.WRITE),
    ResourceType.GROUP: (AclOperation.READ,),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE,),
}
"""The permissions of alice on resources whose names begin with ``t-``."""
PLAIN = f"{MODULES}.plain.PlainLoginModule required"


class SecuredCluster(ClusterOfProcesses):
    """Three brokers. The test observes them through listeners without TLS; its clients use secured listeners."""

    def __init__(self, folder: Path) -> None:
        authority = Authority()
        self.trust = str(authority.write(folder / "trusted.pem"))
        own = authority.issue("CN=broker", "127.0.0.1").write_pem(folder / "broker.pem")
        users = "".join(f' user_{user}="{PASSWORD}"' for user in USERS)
        secured = {
            "ssl.keystore.location": str(own),
            "ssl.truststore.location": self.trust,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
            "inter.broker.listener.name": "SECURE",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} username="broker" password="{PASSWORD}"{users};',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:broker;User:ANONYMOUS",
        }
        super().__init__(folder, overrides={**SETTINGS, **secured})
        addresses = []
        for broker in self.brokers.values():
            secure = f"127.0.0.1:{free_port()}"
            broker.overrides["listeners"] += f",SECURE://{secure}"
            addresses.append(secure)
        self.secure_servers = ",".join(addresses)

    @property
    def client(self) -> dict[str, Any]:
        """The settings of librdkafka's clients."""
        return {
            "bootstrap.servers": self.secure_servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.trust,
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
            "log_level": 0,
        }

    def write_java_client(self, path: Path) -> str:
        """Write the properties of Java's clients. Returns their path."""
        path.write_text(
            f"bootstrap.servers={self.secure_servers}\n"
            "security.protocol=SASL_SSL\n"
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.trust}\n"
            "sasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={PLAIN} username="alice" password="{PASSWORD}";\n'
        )
        return str(path)

    def give_rights(self) -> None:
        bindings = [
            AclBinding(resource, "t-", ResourcePatternType.PREFIXED, "User:alice", "*", right, AclPermissionType.ALLOW)
            for resource, rights in RIGHTS.items()
            for right in rights
        ]
        admin = self.admin  # it ends its requests when it is collected
        for done in admin.create_acls(bindings).values():
            done.result(WAIT_SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    made = SecuredCluster(tmp_path_factory.mktemp("secured-cluster"))
    with made.running(), watched(*made.brokers.values()):
        made.give_rights()
        yield made


@contextmanager
def copying(client: Mapping[str, Any], source: str, target: str) -> Iterator[None]:
    """Copy a topic with librdkafka inside the context, in transactions that commit the offsets of a group."""
    over, failures = Event(), list[BaseException]()

    def run() -> None:
        try:
            _copy(client, source, target, over)
        except BaseException as error:
            failures.append(error)
            raise

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(WAIT_SECONDS)
    assert not failures, failures


def _copy(client: Mapping[str, Any], source: str, target: str, over: Event) -> None:
    consumer = Consumer(
        {
            **client,
            "group.id": f"t-of-{target}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    while not over.is_set():  # one round for each producer
        producer = Producer({**client, "transactional.id": f"t-of-{target}", "transaction.timeout.ms": 10000})
        try:
            _repeated(producer.init_transactions, WAIT_SECONDS)
            while not over.is_set():
                found = [each for each in consumer.consume(20, 0.2) if each.error() is None]
                if found:
                    _copy_in_a_transaction(consumer, producer, target, found)
        except KafkaException as error:
            if not (error.args[0].fatal() or error.args[0].txn_requires_abort()):
                raise
            _rewind(consumer)
    consumer.close()


def _copy_in_a_transaction(consumer: Consumer, producer: Producer, target: str, found: list[Message]) -> None:
    producer.begin_transaction()
    for each in found:
        producer.produce(target, each.value(), each.key(), partition=each.partition() or 0)
    positions = consumer.position(consumer.assignment())
    _repeated(producer.send_offsets_to_transaction, positions, consumer.consumer_group_metadata(), WAIT_SECONDS)
    _repeated(producer.commit_transaction, WAIT_SECONDS)


def _repeated(call: Callable[..., Any], *arguments: Any) -> None:
    """Repeat a call while it fails with a retriable error."""
    while True:
        try:
            call(*arguments)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def _rewind(consumer: Consumer) -> None:
    for each in consumer.committed(consumer.assignment(), WAIT_SECONDS):
        consumer.seek(TopicPartition(each.topic, each.partition, max(0, each.offset)))


def test_exactly_once_while_each_broker_is_killed(
    cluster: SecuredCluster, new_name: Callable[..., str], tmp_path: Path
) -> None:
    """Java copies the first topic to the second, librdkafka the second to the third, while others produce."""
    source, between, target = (cluster.create_topic(new_name(), PARTITIONS) for _ in range(3))
    count = 1500
    sent = [(number % PARTITIONS, f"k{number}", f"v{number}") for number in range(count)]
    fill(cluster, source, sent)
    properties = cluster.write_java_client(tmp_path / "client.properties")
    copiers = [
        Program(tmp_path, COPIER, properties, source, between, f"t-of-{source}", "consumer", f"t-of-{source}-{number}")
        for number in range(2)
    ]
    trials = [
        Trial(cluster.secure_servers, cluster.create_topic(new_name(), 3), partitions=3, rate=RATE,
              transactional=transactional, client=cluster.client)
        for transactional in (True, False)
    ]  # fmt: skip
    output = Committed(cluster, target)
    with running(*copiers), copying(cluster.client, between, target):
        with trials[0], trials[1]:
            for number, broker in cluster.brokers.items():
                broker.kill()
                for trial in trials:
                    trial.wait_for_acknowledged(50)
                output.wait_for(number * count // 4, copiers)
                cluster.start_all()
                cluster.wait_until_in_sync()
        output.wait_for(count, copiers)
    output.close()
    for partition in range(PARTITIONS):
        assert output.values[partition] == [(key, value) for at, key, value in sent if at == partition]
    for trial in trials:
        assert not trial.errors, trial.errors
        verdict = trial.verdict()
        assert verdict.ok, verdict
