"""A pytest plugin: the fixtures ``kafka_broker`` and ``kafka_cluster``, which run in this process for a whole test run.

pytest loads the plugin in every project that has Parley installed, so it must be cheap: it imports the broker when a
test first uses a fixture.
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
    """The part of the interface that both fixtures have."""

    def __init__(self, served: Broker | Cluster, replicas: int) -> None:
        self._served = served
        self._replicas = replicas

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of each broker, separated by commas, for the configuration of clients."""
        return self._served.bootstrap_servers

    def _create_topic(self, name: str, partitions: int, replicas: int, configs: Mapping[str, str] | None) -> str:
        # In another thread, because the caller's thread may have a running event loop.
        with ThreadPoolExecutor(1) as thread:
            making = _create(self.bootstrap_servers, name, partitions, replicas, dict(configs or {}))
            thread.submit(asyncio.run, making).result()
        return name


class KafkaBroker(_Served):
    """A running broker, for tests of any client."""

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic with these settings, wait until it can be used, and return its name.

        A topic that a client uses is also created automatically, with one partition. This method may also be called
        from async tests. Raises ``parley.protocol.errors.KafkaError`` if the broker rejects the request, for
        example with TOPIC_ALREADY_EXISTS.
        """
        return self._create_topic(name, partitions, self._replicas, configs)


class KafkaCluster(_Served):
    """Three running brokers, to test how clients handle the loss of a broker. A test that stops a broker must restart
    it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, len(cluster.brokers))
        self._cluster = cluster

    @property
    def brokers(self) -> list[int]:
        """The ids of all brokers, including stopped ones."""
        return list(self._cluster.brokers)

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, replicas: int | None = None
    ) -> str:
        """Create a topic like ``KafkaBroker.create_topic``. By default each broker has a replica of each partition."""
        return self._create_topic(name, partitions, self._replicas if replicas is None else replicas, configs)

    def kill(self, broker: int) -> None:
        """Stop a broker like a killed process. The other brokers have all records that were acknowledged with
        ``acks=all``. Does nothing if the broker is stopped. Raises ValueError if there is no such broker."""
        self._cluster.kill(broker)

    def stop(self, broker: int) -> None:
        """Stop a broker with a controlled shutdown, which first moves its leadership to other brokers. Does nothing if
        the broker is stopped. Raises ValueError if there is no such broker."""
        self._cluster.stop(broker)

    def restart(self, broker: int) -> None:
        """Start a stopped broker with its previous address and data. A running broker is stopped first. Raises
        ValueError if there is no such broker."""
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
    """Declare the settings of the brokers, as a command-line option and an ini option."""
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
    """Return the settings of the brokers. Those on the command line override those in the ini file. Raises
    ``pytest.UsageError`` for a text that is not ``key=value``."""
    settings = {}
    for line in [*config.getini(_INI), *config.getoption(_OPTION)]:
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise pytest.UsageError(f"{_INI} takes key=value, not '{line}'")
        settings[key.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[KafkaBroker]:
    """Run a Kafka broker in a thread of this process until the end of the test run. It starts empty."""
    from parley import Broker

    with Broker(broker_settings(pytestconfig)) as broker:
        yield KafkaBroker(broker, 1)


@pytest.fixture(scope="session")
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    """Run three Kafka brokers in a thread of this process until the end of the test run. They start empty."""
    from parley import Cluster

    with Cluster(broker_settings(pytestconfig), brokers=3) as cluster:
        yield KafkaCluster(cluster)
