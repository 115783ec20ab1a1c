"""The commands of docs/migrate-from-kafka.md, on Apache Kafka 3.9 with ZooKeeper and a Parley broker in a process.

``systemctl`` stops and starts these two; the addresses and folders of the page are replaced by theirs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_blocks import check, commands
from tests.support.java_archives import small_spark
from tests.support.kafka import KafkaWithZooKeeper, kafka_39_zk
from tests.support.ports import free_port
from tests.support.preloaded import preloaded_path
from tests.system.running import BrokerProcess

pytestmark = [pytest.mark.soak, pytest.mark.system, pytest.mark.timeout(1200)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrate-from-kafka.md"
COMMAND_SECONDS = 600
SECURED = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
BEFOREHAND = """\
parley topics --create --topic orders --partitions 2 --config retention.ms=86400000 --config cleanup.policy=delete
seq 1 100 | sed 's/.*/&:order &/' | parley produce --topic orders --property parse.key=true --property key.separator=:
parley consume --topic orders --partition 1 --offset earliest --max-messages 40
parley groups --reset-offsets --group billing --topic orders:1 --to-offset 40 --execute
parley acls --add --allow-principal User:alice --producer --topic orders
parley configs --alter --user alice --add-config 'SCRAM-SHA-256=[password=alice-secret]'
parley configs --alter --user alice --add-config producer_byte_rate=1048576
"""
"""What the cluster has that is left: typed on Kafka before the page begins."""
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(section: str, kind: str) -> list[str]:
    """Return the blocks of a section of the page, also those within a list."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [textwrap.dedent(code) for _, found, code in _BLOCK.findall(text) if found == kind]


class Site:
    """The machine where the page is typed."""

    def __init__(self, folder: Path, kafka: KafkaWithZooKeeper) -> None:
        self.folder, self.kafka = folder, kafka
        self.broker = BrokerProcess(folder / "parley", port=free_port())
        self._names = {
            "kafka-1:9092": kafka.bootstrap_servers,
            "parley-1:9092": self.broker.bootstrap_servers,
            "/var/lib/kafka": str(kafka.log_dir),
            "/var/lib/parley": str(self.broker.data),
        }
        (properties,) = blocks("Before", "properties")
        settings = dict(line.split("=", 1) for line in self.here(properties).splitlines())
        assert settings.items() >= SECURED.items()
        self.broker.overrides.update(settings)
        own = {"PATH": preloaded_path(), "XDG_CONFIG_HOME": f"{folder}/config"}
        self._environment = {name: value for name, value in os.environ.items() if name != "PARLEY_PROFILE"} | own

    def here(self, text: str) -> str:
        for name, value in self._names.items():
            text = text.replace(name, value)
        return text

    def type(self, command: str) -> str:
        """What the command prints. It must end with exit code 0."""
        if command == "systemctl stop kafka":
            self.kafka.stop()
            return ""
        if command == "systemctl start parley":
            self.broker.start()
            return ""
        typed = self.here(command)
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {typed}"],
            cwd=self.folder, env=self._environment, text=True, timeout=COMMAND_SECONDS, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {typed}\n{done.stdout}\n{self._log()}"
        return done.stdout

    def _log(self) -> str:
        return self.broker.log()[-2000:] if self.broker.log_path.exists() else ""

    def follow(self, section: str) -> None:
        """Type the commands of a section, and compare what they print."""
        for block in blocks(section, "console"):
            for command, shown in commands(block):
                check(command, self.type(command), shown)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "kafka").mkdir()
    with kafka_39_zk(tmp_path / "kafka", SECURED) as kafka:
        site = Site(tmp_path, kafka)
        (program,) = blocks("Settings, ACLs, users and quotas", "python")
        (tmp_path / "carry_over.py").write_text(program)
        site.type(f"parley profile add old --bootstrap-server {kafka.bootstrap_servers}")
        for line in BEFOREHAND.splitlines():
            site.type(f"export PARLEY_PROFILE=old; {line}")
        try:
            yield site
        finally:
            site.broker.kill()


def carried_over(site: Site) -> None:
    """The last two sections, and what they leave on Parley."""
    site.follow("Settings, ACLs, users and quotas")
    site.follow("After")
    before, after = (json.loads((site.folder / name).read_text()) for name in ("acls.json", "acls-after.json"))
    assert sorted(map(repr, before)) == sorted(map(repr, after))
    on_parley = "--bootstrap-server parley-1:9092"
    described = site.type(f"parley configs {on_parley} --describe --topic orders")
    assert "retention.ms=86400000" in described
    users = site.type(f"parley configs {on_parley} --describe --entity-type users")
    assert "producer_byte_rate=1048576.0" in users
    assert "SCRAM-SHA-256=iterations=" in users


def test_the_data_directory_is_opened(site: Site) -> None:
    site.follow("Before")
    site.follow("The data directory")
    carried_over(site)
    # The way back.
    site.broker.stop()
    site.kafka.start()
    assert "orders:1:51" in site.type("parley offsets --bootstrap-server kafka-1:9092 --topic orders")


@pytest.mark.spark
def test_the_cluster_is_mirrored(site: Site) -> None:
    site.follow("Before")
    site.broker.start()
    (properties,) = blocks("Mirroring", "ini")
    (site.folder / "mm2.properties").write_text(site.here(properties))
    (mirror,) = blocks("Mirroring", "sh")
    settings = ("spark.driver.memory=1g", "spark.ui.enabled=false", f"spark.driver.extraJavaOptions={small_spark()}")
    site.type(shlex.join([*mirror.split(), *(word for each in settings for word in ("--conf", each))]))
    on_parley = "parley offsets --bootstrap-server parley-1:9092 --topic orders"
    assert site.type(f"{on_parley} | diff offsets.txt -") == ""
    described = site.type("parley groups --bootstrap-server parley-1:9092 --describe --group billing")
    assert " ".join(described.splitlines()[-1].split()).startswith("billing orders 1 40 51 11")
    carried_over(site)
