"""The controller knows the log directory of each replica, and a broker reports the directories that it has lost."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import UNASSIGNED_DIRECTORY
from parley.broker.replication import replica_directories
from parley.broker.replication.replica_directories import ReplicaDirectories
from parley.broker.server import BrokerServer
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.log_dirs import AlterReplicaLogDirsRequest
from parley.protocol.messages.replication import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.uuids import UUID
from parley.storage.log import Log
from parley.storage.partition_metadata import encode_id
from tests.broker.api.bench import Bench

pytestmark = pytest.mark.slow

PATIENCE_S = 30


def server_in(directory: Path, *names: str) -> BrokerServer:
    settings = {
        "broker.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": ",".join(str(directory / name) for name in names),
        "coordination.url": f"local://{directory}/store",
    }
    return BrokerServer(BrokerConfig.from_properties(settings))


async def create(server: BrokerServer, partitions: int) -> None:
    new = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    async with Client(server.bootstrap_servers) as client:
        await client.send(CreateTopicsRequest(topics=[new]))


def agrees(server: BrokerServer, image: MetadataImage) -> bool:
    """Return True if the metadata has the directory of each log."""
    logs = server.parts.logs
    return all(
        image.topics["t"].partitions[log.partition].directory(1) == logs.directory_of(log).id for log in logs.logs
    )


async def test_the_directories_of_replicas_follow_the_logs(tmp_path: Path) -> None:
    server = server_in(tmp_path, "a", "b")
    await server.start()
    try:
        await create(server, 4)
        assert await server.metadata.until(lambda image: agrees(server, image), PATIENCE_S)
        states = server.metadata.image.topics["t"].partitions
        assert {state.directory(1) for state in states} == set(server.parts.logs.online_ids())
        here, there = server.parts.logs.directories
        moving = [log.partition for log in server.parts.logs.logs_in(here)]
        topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="t", partitions=moving)
        asked = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=str(there), topics=[topic])
        async with Client(server.bootstrap_servers) as client:
            await client.send(AlterReplicaLogDirsRequest(dirs=[asked]))
        assert await server.metadata.until(
            lambda image: {state.directory(1) for state in image.topics["t"].partitions} == {there.id}, PATIENCE_S
        )
        while not agrees(server, server.metadata.image):  # noqa: ASYNC110  the controller knows it before
            await asyncio.sleep(0.01)
    finally:
        await server.stop()


@pytest.mark.parametrize("is_clean", [False, True])
async def test_replicas_are_where_they_were_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_clean: bool
) -> None:
    server = server_in(tmp_path, "a", "b")
    await server.start()
    await create(server, 4)
    assert await server.metadata.until(lambda image: agrees(server, image), PATIENCE_S)
    before = [state.directory(1) for state in server.metadata.image.topics["t"].partitions]
    await (server.stop() if is_clean else server.kill())
    caplog.clear()
    again = server_in(tmp_path, "a", "b")
    await again.start()
    try:
        states = again.metadata.image.topics["t"].partitions
        assert [state.directory(1) for state in states] == before
        assert await again.metadata.until(
            lambda image: all(state.leader == 1 for state in image.topics["t"].partitions), PATIENCE_S
        )
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
    finally:
        await again.stop()


async def test_directories_are_reported_until_the_controller_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_directories, "RETRY_S", 0.01)
    server = server_in(tmp_path, "a", "b")
    asked: list[AssignReplicasToDirsRequest] = []
    reported: set[UUID] = set()
    succeeded = asyncio.Event()

    async def ask(request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        asked.append(request)
        if len(asked) == 1:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        if len(asked) == 2:
            return AssignReplicasToDirsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, directories=[])
        reported.update(directory.id for directory in request.directories)
        if reported == set(server.parts.logs.online_ids()):
            succeeded.set()
        return AssignReplicasToDirsResponse(directories=[])

    await server.start()
    try:
        parts = server.parts
        monkeypatch.setattr(parts.replica_directories, "_ask_controller", ask)
        await create(server, 2)
        await succeeded.wait()
        assert {request.broker_epoch for request in asked} == {parts.lifecycle.broker_epoch}
    finally:
        await server.stop()


class TwoDirectories:
    """The logs of a broker with two directories; all are in ``directory``."""

    def __init__(self) -> None:
        self.directories = [SimpleNamespace(id=UUID(int=number)) for number in (11, 12)]
        self.directory = self.directories[0]

    def directory_of(self, log: Log) -> SimpleNamespace:
        return self.directory


class Reporting:
    """A broker with one replica reports directories to a controller that responds when the test wants it.

    Make it in a running event loop, and close ``bench.tasks`` at the end.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(replica_directories, "GATHERED_S", 0)
        self.bench, self.logs = Bench(folder), TwoDirectories()
        self.asked: asyncio.Queue[UUID] = asyncio.Queue()
        """The directory of each request."""
        self.responses: asyncio.Queue[None] = asyncio.Queue()
        partitions = self.bench.partitions
        self.directories = ReplicaDirectories(1, self.logs, partitions, self._ask, epoch=lambda: 1)  # type: ignore[arg-type]
        partitions.call_when_opened(self.directories.check)
        self.bench.metadata.subscribe(self.directories.apply)
        self.bench.tasks.start(self.directories.run(), name="directories")

    async def _ask(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        self.asked.put_nowait(request.directories[0].id)
        await self.responses.get()
        return AssignReplicasToDirsResponse(directories=[])


async def test_a_move_during_a_report_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata shows a report only some time after the controller's response."""
    reporting = Reporting(tmp_path, monkeypatch)
    bench, logs, directories = reporting.bench, reporting.logs, reporting.directories
    asked, responses = reporting.asked, reporting.responses
    first, second = logs.directories
    await bench.create("t")
    partition = bench.partition("t")

    def move(to: SimpleNamespace) -> None:
        logs.directory = to
        directories.check(partition)

    try:
        assert await asked.get() == first.id
        move(second)
        responses.put_nowait(None)
        assert await asked.get() == second.id
        bench.alter("t", directories=(first.id,))
        move(first)  # the metadata names it still
        responses.put_nowait(None)
        bench.alter("t", directories=(second.id,))
        assert await asked.get() == first.id
    finally:
        await bench.tasks.close()


async def test_a_move_is_reported_before_it_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move waits until the controller knows the new directory; one that fails is reported back (KIP-858)."""
    reporting = Reporting(tmp_path, monkeypatch)
    bench, logs, directories = reporting.bench, reporting.logs, reporting.directories
    asked, responses = reporting.asked, reporting.responses
    first, second = logs.directories
    await bench.create("t")
    partition = bench.partition("t")
    try:
        assert await asked.get() == first.id
        bench.alter("t", directories=(first.id,))
        responses.put_nowait(None)
        moving = asyncio.ensure_future(directories.announce(partition, second.id))
        assert await asked.get() == second.id
        assert not moving.done()
        responses.put_nowait(None)
        await moving
        bench.alter("t", directories=(second.id,))
        assert directories._directory_to_report(partition) is None  # although the replica is in the first one
        directories.settle(partition)  # the move has failed
        assert await asked.get() == first.id
        responses.put_nowait(None)
        bench.alter("t", directories=(first.id,))
        await directories.announce(partition, first.id)
    finally:
        await bench.tasks.close()


async def test_a_replica_moves_when_the_controller_knows_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_in(tmp_path, "a", "b")
    await server.start()
    try:
        await create(server, 2)
        assert await server.metadata.until(lambda image: agrees(server, image), PATIENCE_S)
        logs = server.parts.logs
        log = logs.logs_in(logs.directories[0])[0]
        known: list[UUID | None] = []
        replace_log = logs.copies.replace

        def replaced(old: Log, copy: Log) -> None:
            known.append(server.metadata.image.topics["t"].partitions[old.partition].directory(1))
            replace_log(old, copy)

        monkeypatch.setattr(logs.copies, "replace", replaced)
        there = logs.directories[1]
        topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="t", partitions=[log.partition])
        asked = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=str(there), topics=[topic])
        async with Client(server.bootstrap_servers) as client:
            await client.send(AlterReplicaLogDirsRequest(dirs=[asked]))
        while not known:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert known == [there.id]
    finally:
        await server.stop()


async def test_the_only_directory_of_a_broker_needs_no_assignment(tmp_path: Path) -> None:
    server = server_in(tmp_path, "a")
    await server.start()
    try:
        await create(server, 1)
        (partition,) = server.parts.partitions
        directories = server.parts.replica_directories
        assert directories._directory_to_report(partition) is None
        assert server.metadata.image.topics["t"].partitions[0].directory(1) == UNASSIGNED_DIRECTORY
    finally:
        await server.stop()


async def test_a_broker_names_the_directory_that_was_emptied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = server_in(tmp_path, "a", "b")
    await first.start()
    lost, kept = (directory.id for directory in first.parts.logs.directories)
    await first.stop()
    shutil.rmtree(tmp_path / "a")
    again = server_in(tmp_path, "a", "b")
    await again.start()
    assert lost is not None
    assert again.metadata.image.brokers[1].log_dirs[1] == kept
    await again.stop()
    (line,) = [each for each in caplog.records if "log directories of this broker are missing" in each.message]
    assert line.levelno == logging.ERROR
    assert (vars(line)["missing"], vars(line)["new"]) == (encode_id(lost), str(tmp_path / "a"))


def changed_directories(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if "log directories of this broker" in each.message]


async def test_a_broker_names_an_older_copy_of_its_directories(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        server = server_in(tmp_path, "a")
        await server.start()
        await server.stop()
        if not (tmp_path / "copy").exists():
            shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert changed_directories(caplog) == []
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "copy").rename(tmp_path / "a")
    again = server_in(tmp_path, "a")
    await again.start()
    await again.stop()
    (line,) = changed_directories(caplog)
    assert "were replaced by an older copy" in line


async def test_an_older_store_does_not_make_a_new_disk_a_missing_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store was rolled back to a state before the exchange of a disk: it names the previous directory."""
    for names in (("a",), ("a", "b"), ("b",)):
        server = server_in(tmp_path, *names)
        await server.start()
        await server.stop()
        if names == ("a",):
            shutil.copytree(tmp_path / "store", tmp_path / "dump")
    caplog.clear()
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "dump").rename(tmp_path / "store")
    again = server_in(tmp_path, "b")
    await again.start()
    await again.stop()
    assert changed_directories(caplog) == []
