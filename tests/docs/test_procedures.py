"""Every command of docs/procedures.md is typed in order, on four broker processes and a separate etcd.

The machines of the page are folders: ``ssh broker-1 systemctl stop parley`` stops a process, and what else runs "on"
a machine runs here, with the paths of its folder.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_blocks import blocks, check, commands
from tests.support.ports import free_port
from tests.support.preloaded import preloaded_path
from tests.support.stores.of_tools import store_server
from tests.system.clusters import SETTINGS
from tests.system.running import BrokerProcess

pytestmark = [pytest.mark.soak, pytest.mark.system, pytest.mark.timeout(900)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "procedures.md"
COMMAND_SECONDS = 300
STORE = "etcd://etcd-1:2379"
_SERVICE = re.compile(r"systemctl (start|stop|disable --now) parley")


class Machine(BrokerProcess):
    """A broker that is started with its properties file."""

    def __init__(self, folder: Path, number: int, store: str) -> None:
        super().__init__(folder)
        self.metrics = f"127.0.0.1:{free_port()}"
        self.file = folder / "broker.properties"
        settings = {**SETTINGS, **self.overrides, "metrics.listener": self.metrics, "broker.id": str(number)}
        settings["coordination.url"] = store
        self.file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def words(self) -> list[str]:
        return ["parley", "start", str(self.file)]

    def here(self, command: str) -> str:
        """Return a command of this machine, with its paths and addresses."""
        command = command.replace("/var/lib/parley", str(self.data)).replace("/etc/parley", str(self.folder))
        return command.replace("127.0.0.1:9464", self.metrics)


class Site:
    """Types what the page shows, on the operator's machine."""

    def __init__(self, folder: Path, etcd: str) -> None:
        self.folder = folder
        self.etcd = etcd
        (folder / "backup").mkdir()
        self.machines = {n: Machine(folder / f"broker-{n}", n, f"{etcd}/parley") for n in (1, 2, 3, 4)}
        own = {"PATH": preloaded_path(), "XDG_CONFIG_HOME": f"{folder}/config"}
        self._environment = {name: value for name, value in os.environ.items() if name != "PARLEY_PROFILE"} | own

    def type(self, command: str) -> str:
        """What the command prints. It must end with exit code 0."""
        if on_machine := re.fullmatch(r"ssh broker-(\d) (.*)", command, re.DOTALL):
            machine, command = self.machines[int(on_machine[1])], on_machine[2]
            if service := _SERVICE.fullmatch(command):
                self._turn(machine, service[1])
                return ""
            command = machine.here(command)
        return self._run(command)

    def _turn(self, machine: Machine, what: str) -> None:
        if what == "start":
            machine.launch()
        else:
            assert machine.stop() == 0, machine.log()

    def _run(self, command: str) -> str:
        command = command.replace(STORE, self.etcd).replace("/backup/", f"{self.folder}/backup/")
        for number, machine in self.machines.items():
            command = command.replace(f"broker-{number}:9092", machine.bootstrap_servers)
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=self.folder, env=self._environment, text=True, timeout=COMMAND_SECONDS, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n" + "\n".join(
            machine.log()[-1500:] for machine in self.machines.values()
        )
        return done.stdout


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with store_server("etcd", tmp_path / "store") as url:
        site = Site(tmp_path, url.rpartition("/")[0] if url.count("/") > 2 else url)
        try:
            for machine in site.machines.values():
                machine.launch()
            for machine in site.machines.values():
                machine.wait_until_ready()
            yield site
        finally:
            for machine in site.machines.values():
                machine.kill()


def test_the_procedures_work_as_they_are_shown(site: Site) -> None:
    for block in blocks(PAGE, "console"):
        for command, shown in commands(block):
            check(command, site.type(command), shown)
