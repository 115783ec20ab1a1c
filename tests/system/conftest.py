"""Brokers for the system tests. If a test fails, the log of each is shown."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.system.running import BrokerProcess

_SHOWN_BYTES = 4_000
_running: dict[BrokerProcess, int] = {}
"""The running brokers, and the length of each one's log when the test began."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed:
        for broker, start in _running.items():
            text = broker.log(start)[-_SHOWN_BYTES:]
            report.sections.append((f"log of the broker at {broker.bootstrap_servers}", text))
    return report  # type: ignore[return-value]


@contextmanager
def watched(*brokers: BrokerProcess) -> Iterator[None]:
    """Show the logs of these brokers if the test fails."""
    _running.update(dict.fromkeys(brokers, 0))
    try:
        yield
    finally:
        for broker in brokers:
            _running.pop(broker)


@pytest.fixture(autouse=True)
def _log_positions() -> None:
    for broker in _running:
        _running[broker] = broker.log_size()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield the broker that most tests share. Each worker has its own."""
    kept = {"log.retention.check.interval.ms": "86400000"}  # records of tests are of any time
    running = BrokerProcess(tmp_path_factory.mktemp("shared-broker"), kept)
    _running[running] = 0
    running.start()
    try:
        yield running
        assert running.alive, "the shared broker has died"
    finally:
        code = running.stop()
        _running.pop(running)
        assert code == 0, f"the broker ended with {code}"


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Create brokers for one test: ``new_broker(**{"some.key": "value"})``. They are not started, and are stopped with
    the test."""
    made: list[BrokerProcess] = []

    def make(**overrides: str) -> BrokerProcess:
        process = BrokerProcess(tmp_path / f"broker-{len(made)}", overrides)
        made.append(process)
        _running[process] = 0
        return process

    yield make
    for process in made:
        process.kill()
        _running.pop(process)


_numbers = itertools.count()


@pytest.fixture
def new_name(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Return unique names for topics and groups."""
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60]

    def make(kind: str = "t") -> str:
        return f"{kind}-{test}-{os.getpid()}-{next(_numbers)}"

    return make


@pytest.fixture(scope="session")
def admin(broker: BrokerProcess) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        yield client


@pytest.fixture
def new_topic(admin: AdminClient, new_name: Callable[..., str]) -> Callable[..., str]:
    """Create topics: ``new_topic(partitions=3, **{"retention.ms": "1000"})``."""

    def make(partitions: int = 1, **config: str) -> str:
        name = new_name()
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)
        return name

    return make
