"""A pytest plugin: the fixture ``kafka_broker``, a broker in this process for the whole test run.

It is found by its entry point in every project that has Parley installed, so it must cost nothing there: the broker is
imported when a test first asks for the fixture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker import Broker

_OPTION = "--kafka-broker-config"
_INI = "kafka_broker_config"


class KafkaBroker:
    """A running broker, for tests of any client."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, as every client's configuration wants it."""
        return self._broker.bootstrap_servers

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Make a topic with these settings, wait until it can be used, and answer its name.

        Topics that a client names are also made by themselves, with one partition. May be called from async tests too.
        Raises ``protocol.errors.KafkaError`` where the broker refuses, as TOPIC_ALREADY_EXISTS.
        """
        # In a thread, because the caller's may have a running event loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _create(self.bootstrap_servers, name, partitions, dict(configs or {}))).result()
        return name


async def _create(bootstrap: str, name: str, partitions: int, configs: Mapping[str, str]) -> None:
    from protocol.client import Client
    from protocol.errors import ErrorCode, KafkaError
    from protocol.messages.topics import CreateTopicsRequest

    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
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
        help="a setting of the broker behind the fixture kafka_broker, as in server.properties; repeatable",
    )
    parser.addini(_INI, "settings of the broker behind the fixture kafka_broker: key=value lines", type="linelist")


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
    from broker import Broker

    with Broker(broker_settings(pytestconfig)) as broker:
        yield KafkaBroker(broker)
