"""The coordination store of real processes is restored: from a dump, from a copy, from what is left without its WAL, or
from an older copy of its server's data."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import pytest

from tests.support.preloaded import preloaded_command
from tests.support.stores.running import SERVERS, below
from tests.support.stores.servers import Servers
from tests.system.clusters import IMPATIENT, ClusterOfProcesses, losing_nothing
from tests.system.conftest import watched


def parley(*words: str) -> str:
    command = preloaded_command("coordination", *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


class Dump:
    """``parley coordination dump`` and ``restore``."""

    def __init__(self, folder: Path) -> None:
        self._store, self._file = f"local://{folder}/coordination", folder / "dump.json"

    def take(self) -> None:
        self._file.write_text(parley("dump", self._store, "--show-secrets"))

    def restore(self) -> None:
        parley("restore", str(self._file), self._store, "--overwrite")


class Copy:
    """A copy of the database, made by SQLite."""

    def __init__(self, folder: Path) -> None:
        self._database, self._copy = folder / "coordination" / "store.db", folder / "copy.db"

    def take(self) -> None:
        with closing(sqlite3.connect(self._database)) as source, closing(sqlite3.connect(self._copy)) as copy:
            source.backup(copy)

    def restore(self) -> None:
        for suffix in ("-wal", "-shm"):
            self._database.with_name(f"store.db{suffix}").unlink(missing_ok=True)
        shutil.copy(self._copy, self._database)


class Wal:
    """The database without its WAL, which is deleted."""

    def __init__(self, folder: Path) -> None:
        self._database = folder / "coordination" / "store.db"

    def take(self) -> None:
        with closing(sqlite3.connect(self._database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def restore(self) -> None:
        self._database.with_name("store.db-wal").unlink()


class InPlace(Copy):
    """A copy that SQLite writes into the database while brokers use it."""

    def restore(self) -> None:
        with closing(sqlite3.connect(self._database)) as live, closing(sqlite3.connect(self._copy)) as copy:
            copy.backup(live)


class ServerData:
    """A copy of the data of a store's server, which is stopped meanwhile."""

    def __init__(self, folder: Path, servers: Servers) -> None:
        self._servers, self._data, self._copy = servers, servers.nodes[0].data, folder / "server-data"

    def take(self) -> None:
        self._servers.kill()
        shutil.copytree(self._data, self._copy)
        self._servers.start()

    def restore(self) -> None:
        self._servers.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self._servers.start()


@pytest.mark.soak
@pytest.mark.parametrize("store", ["local", *SERVERS])
def test_the_store_is_rolled_back_under_running_brokers_while_one_is_dead(
    tmp_path: Path, new_name: Callable[..., str], store: str
) -> None:
    """The partitions continue without the dead broker, and no other broker ends."""
    serving: AbstractContextManager[Servers | None] = nullcontext() if store == "local" else SERVERS[store]()
    with serving as servers:
        address = {} if servers is None else {"coordination.url": below(servers.url, "set-back")}
        backup = InPlace(tmp_path) if servers is None else ServerData(tmp_path, servers)
        cluster = ClusterOfProcesses(tmp_path, overrides=address)
        with (
            cluster.running(),
            watched(*cluster.brokers.values()),
            losing_nothing(cluster, new_name(), client=IMPATIENT) as trial,
        ):
            trial.wait_for_acknowledged(60)
            backup.take()
            for victim in (1, 2):
                cluster.brokers[victim].kill()
                trial.wait_for_acknowledged(60)
                cluster.heal()
            cluster.brokers[3].kill()
            trial.wait_for_acknowledged(60)
            backup.restore()
            noticed = "the coordination store was rolled back to an older state"
            while not any(noticed in broker.log() for broker in cluster.brokers.values()):
                trial.wait_for_acknowledged(1)
            trial.wait_for_acknowledged(60)
            assert [cluster.brokers[each].alive for each in (1, 2, 3)] == [True, True, False]
            cluster.heal()
            trial.wait_for_acknowledged(60)


@pytest.mark.soak
@pytest.mark.parametrize("way", [Dump, Copy, Wal])
def test_nothing_is_lost_when_the_store_is_restored(
    tmp_path: Path, new_name: Callable[..., str], way: Callable[[Path], Dump | Copy | Wal]
) -> None:
    backup = way(tmp_path)
    cluster = ClusterOfProcesses(tmp_path)
    with cluster.running(), watched(*cluster.brokers.values()):
        with losing_nothing(cluster, new_name(), client=IMPATIENT) as trial:
            trial.wait_for_acknowledged(60)
            backup.take()
            for victim in (1, 2, 3):
                cluster.brokers[victim].kill()
                trial.wait_for_acknowledged(60)
                cluster.heal()
            for broker in cluster.brokers.values():
                broker.kill()
            backup.restore()
            cluster.start_all(order=(3, 1, 2))
            cluster.wait_until_in_sync()
            trial.wait_for_acknowledged(60)
        logged = "".join(broker.log(0) for broker in cluster.brokers.values())
        assert "the coordination store was rolled back to an older state" in logged
