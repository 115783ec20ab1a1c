"""The coordination store of real processes is restored from a dump, from a copy, or from what is left
without its WAL."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.preloaded import preloaded_command
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
        assert "the coordination store was set back to an older state" in logged
