"""A running cluster under load is secured: a secure port opens, brokers and then clients move to it, the plain port
closes.

Then the brokers change their mechanism. librdkafka's clients lose nothing and see no error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from parley.tools.checker import Trial
from tests.broker.security.secured_brokers import MODULES
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.system.clusters import POLL_S, RATE, WAIT_SECONDS, ClusterOfProcesses

SCRAM = "SCRAM-SHA-512"
PASSWORD = "secret"
PLAIN_USERS = f'user_broker="{PASSWORD}"'
PARTITIONS = 3


def line(module: str, user: str, more: str = "") -> str:
    return f'{MODULES}.{module}LoginModule required username="{user}" password="{PASSWORD}" {more};'


class Rolling:
    """Three brokers that are restarted with other settings, one after another."""

    def __init__(self, folder: Path) -> None:
        authority = Authority()
        self.trust = str(authority.write(folder / "trusted.pem"))
        own = authority.issue("CN=broker", "127.0.0.1").write_pem(folder / "broker.pem")
        self.plain: dict[int, str] = {}
        self.secure: dict[int, str] = {}
        self.cluster = ClusterOfProcesses(
            folder,
            overrides={
                "ssl.keystore.location": str(own),
                "ssl.truststore.location": self.trust,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
                "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.secure.plain.sasl.jaas.config": line("plain.Plain", "broker", PLAIN_USERS),
                f"listener.name.secure.{SCRAM.lower()}.sasl.jaas.config": line("scram.Scram", "broker"),
                "inter.broker.listener.name": "PLAINTEXT",
                "transaction.state.log.replication.factor": "3",
                "transaction.state.log.min.isr": "2",
            },
        )
        for number, broker in self.cluster.brokers.items():
            self.plain[number] = f"PLAINTEXT://127.0.0.1:{broker.port}"
            self.secure[number] = f"SECURE://127.0.0.1:{free_port()}"

    def restart(self, *listeners: Mapping[int, str], client: Mapping[str, Any], **settings: str) -> None:
        """Restart each broker with these listeners, once the previous one is in all ISRs again."""
        for number, broker in self.cluster.brokers.items():
            assert broker.stop() == 0, broker.log()
            broker.overrides["listeners"] = ",".join(each[number] for each in listeners)
            broker.overrides.update({name.replace("_", "."): value for name, value in settings.items()})
            broker.start()
            wait_until_in_sync(client)

    def client(self, addresses: Mapping[int, str]) -> dict[str, Any]:
        """Return the settings of clients that connect to one of the listeners."""
        servers = {"bootstrap.servers": ",".join(each.partition("://")[2] for each in addresses.values())}
        if addresses is self.plain:
            return servers
        return {
            **servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.trust,
            "sasl.mechanism": SCRAM,
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
        }


def wait_until_in_sync(client: Mapping[str, Any]) -> None:
    admin = AdminClient({**client, "log_level": 0})
    while True:
        topics = admin.list_topics(timeout=WAIT_SECONDS).topics.values()
        found = [each for topic in topics for each in topic.partitions.values()]
        if all(len(each.isrs) == 3 and each.leader >= 0 for each in found):
            return
        time.sleep(POLL_S)


@contextmanager
def losing_nothing(client: Mapping[str, Any], topic: str, *, transactional: bool) -> Iterator[None]:
    trial = Trial(
        client["bootstrap.servers"],
        topic,
        partitions=PARTITIONS,
        producers=2,
        rate=RATE,
        transactional=transactional,
        client=client,
    )
    trial.create_topic(3, {"min.insync.replicas": "2"})
    with trial:
        yield
    assert not trial.errors, trial.errors
    verdict = trial.verdict()
    assert verdict.ok, verdict


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_cluster_is_secured_under_load(tmp_path: Path) -> None:
    rolling = Rolling(tmp_path)
    plain, secure = rolling.client(rolling.plain), rolling.client(rolling.secure)
    with rolling.cluster.running(), ExitStack() as moved:
        with losing_nothing(plain, "before", transactional=False):
            rolling.restart(rolling.plain, rolling.secure, client=plain)
            add_users(plain)
            rolling.restart(rolling.plain, rolling.secure, client=plain, inter_broker_listener_name="SECURE")
            moved.enter_context(losing_nothing(secure, "after", transactional=True))
        rolling.restart(rolling.secure, client=secure)
        rolling.restart(rolling.secure, client=secure, sasl_mechanism_inter_broker_protocol=SCRAM)
        rolling.restart(rolling.secure, client=secure, sasl_enabled_mechanisms=SCRAM)


def add_users(client: Mapping[str, Any]) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    changes: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, info, PASSWORD.encode()) for user in ("alice", "broker")
    ]
    admin = AdminClient(dict(client))  # it ends its requests when it is collected
    for done in admin.alter_user_scram_credentials(changes).values():
        done.result(WAIT_SECONDS)
