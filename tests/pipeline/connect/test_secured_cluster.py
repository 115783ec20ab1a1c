"""A worker, its connectors and their tasks reach a cluster that requires TLS and logins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from parley import Broker
from tests.broker.security.secured_brokers import SecuredBrokers
from tests.pipeline.connect.workers import (
    RunningWorker,
    file_sink,
    file_source,
    group_worker,
    lines,
    standalone_worker,
    until,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> SecuredBrokers:
    return SecuredBrokers(tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="module")
def broker(secured: SecuredBrokers) -> Iterator[Broker]:
    own = ("log.dirs", "coordination.url", "coordination.session.timeout.ms")
    settings = {name: value for name, value in secured.settings(1).items() if name not in own}
    with Broker(settings | {"auto.create.topics.enable": "true"}) as running:
        yield running


@pytest.fixture(params=["standalone", "distributed"])
async def worker(
    request: pytest.FixtureRequest, broker: Broker, secured: SecuredBrokers, tmp_path: Path
) -> AsyncIterator[RunningWorker]:
    address, clients = broker.bootstrap_servers, secured.client_properties()
    if request.param == "standalone":
        async with standalone_worker(address, tmp_path, **clients) as running:
            yield running
    else:
        async with group_worker(address, "secured", None, **clients) as running:
            yield running


async def test_records_pass(worker: RunningWorker, tmp_path: Path) -> None:
    topic = f"secured-{tmp_path.name}".replace("[", "").replace("]", "")
    (tmp_path / "in.txt").write_text("a\nb\n")
    for name, config in (
        ("src", file_source(tmp_path / "in.txt", topic)),
        ("snk", file_sink(tmp_path / "out.txt", topic)),
    ):
        assert (await worker.ask("PUT", f"/connectors/{name}/config", config)).status_code == 201
        await worker.reaches(name, "RUNNING", "RUNNING")
    assert await lines(tmp_path / "out.txt", 2) == ["a", "b"]
    await until(lambda: worker.get("/connectors/src/offsets"), lambda found: found["offsets"] != [])
