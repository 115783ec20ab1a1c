"""A pytest plugin: the fixtures ``kafka_broker`` and ``kafka_cluster``, in this process for the whole test run.

It is found by its entry point in every project that has Parley installed, so it must cost nothing there: the broker is
imported when a test first asks for a fixture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from parley import Broker, Cluster

_OPTION = "--kafka-broker-config"
_INI = "kafka_broker_config"


class _Served:
    """What tests of any client need, of one broker as of several."""

    def __init__(self, served: Broker | Cluster, replicas: int) -> None:
        self._served = served
        self._replicas = replicas

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, with commas between several, as every client's configuration wants it."""
        return self._served.bootstrap_servers

    def _create_topic(self, name: str, partitions: int, replicas: int, configs: Mapping[str, str] | None) -> str:
        # In a thread, because the caller's may have a running event loop.
        with ThreadPoolExecutor(1) as thread:
            making = _create(self.bootstrap_servers, name, partitions, replicas, dict(configs or {}))
            thread.submit(asyncio.run, making).result()
        return name


class KafkaBroker(_Served):
    """A running broker, for tests of any client."""

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Make a topic with these settings, wait until it can be used, and answer its name.

        Topics that a client names are also made by themselves, with one partition. May be called from async tests too.
        Raises ``parley.protocol.errors.KafkaError`` where the broker refuses, as TOPIC_ALREADY_EXISTS.
        """
        return self._create_topic(name, partitions, self._replicas, configs)


class KafkaCluster(_Served):
    """Three running brokers, for tests of what clients do when one is gone. Who hurts it must heal it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, len(cluster.brokers))
        self._cluster = cluster

    @property
    def brokers(self) -> list[int]:
        """The ids of the brokers, those that are down too."""
        return list(self._cluster.brokers)

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, replicas: int | None = None
    ) -> str:
        """As :meth:`KafkaBroker.create_topic`; each partition is on every broker unless ``replicas`` says otherwise."""
        return self._create_topic(name, partitions, self._replicas if replicas is None else replicas, configs)

    def kill(self, broker: int) -> None:
        """End a broker as a killed process ends; what it acknowledged is on the others."""
        self._cluster.kill(broker)

    def stop(self, broker: int) -> None:
        """Stop a broker in order: it gives its leaders away first."""
        self._cluster.stop(broker)

    def restart(self, broker: int) -> None:
        """Start a broker again, at its address and with its data."""
        self._cluster.restart(broker)


async def _create(bootstrap: str, name: str, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
    from parley.protocol.client import Client
    from parley.protocol.errors import ErrorCode, KafkaError
    from parley.protocol.messages.topics import CreateTopicsRequest

    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[],
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    async with Client(bootstrap) as client:
        answer = await client.send(CreateTopicsRequest(topics=[topic]), node=await client.controller())
    result = answer.topics[0]
    if result.error_code:
        code = ErrorCode(result.error_code)
        raise KafkaError(code, result.error_message or code.message)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings of the broker, on the command line and in the ini file."""
    group = parser.getgroup("parley", "Kafka broker (parley)")
    group.addoption(
        _OPTION,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the brokers behind kafka_broker and kafka_cluster, as in server.properties; repeatable",
    )
    parser.addini(
        _INI, "settings of the brokers behind kafka_broker and kafka_cluster: key=value lines", type="linelist"
    )


def broker_settings(config: pytest.Config) -> dict[str, str]:
    """The broker's settings: those of the ini file, and over them those of the command line."""
    settings = {}
    for line in [*config.getini(_INI), *config.getoption(_OPTION)]:
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise pytest.UsageError(f"{_INI} takes key=value, not '{line}'")
        settings[key.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[KafkaBroker]:
    """A Kafka broker in this process, in a thread of its own, until the tests are done. It starts empty."""
    from parley import Broker

    with Broker(broker_settings(pytestconfig)) as broker:
        yield KafkaBroker(broker, 1)


@pytest.fixture(scope="session")
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    """Three Kafka brokers in this process, in a thread of their own, until the tests are done. They start empty."""
    from parley import Cluster

    with Cluster(broker_settings(pytestconfig), brokers=3) as cluster:
        yield KafkaCluster(cluster)
