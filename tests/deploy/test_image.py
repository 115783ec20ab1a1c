"""The image, built and run as by a container engine, but on this machine's root file system instead of the base
image."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container import Container, Image, may_build, memory_limited
from tests.support.installed import ROOT, built

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not may_build(), reason="needs root, to mount"),
]

CLIENT = ("/opt/parley/bin/parley",)
SERVER = ("--bootstrap-server", "localhost:9092")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    context = tmp_path_factory.mktemp("context")
    (context / "dist").symlink_to(built())
    with Image(tmp_path_factory.mktemp("image"), ROOT / "deploy" / "Dockerfile", context).built() as image:
        yield image


@pytest.fixture
def data(image: Image, tmp_path: Path) -> Path:
    """Return a volume, which an engine gives the owner that the image gave the folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    user, group = map(int, image.user.split(":"))
    os.chown(folder, user, group)
    return folder


def test_a_container_without_any_setting(image: Image, data: Path) -> None:
    """It is a broker for clients on this machine. It stops in order, although its first process has the id 1."""
    with Container(image, mounted={"/var/lib/parley/data": data}) as container:
        assert not container.is_healthy()
        written = container.wait_until_ready()
        assert written[-1].endswith("bootstrap.servers=localhost:9092")
        assert container.is_healthy()
        status = Path(f"/proc/{container.pid}/status").read_text()
        assert re.search(r"^Uid:\t10001\t10001\t10001\t10001$", status, re.MULTILINE)
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        assert re.search(r"^NSpid:\t\d+\t1$", status, re.MULTILINE)
        image.run(*CLIENT, "topics", "--create", "--topic", "t", *SERVER)
        code, rest = container.stop()
        assert code == 0, rest
        assert "broker stopped" in rest
    assert (data / "meta.properties").is_file()
    with Container(image, mounted={"/var/lib/parley/data": data}) as container:
        container.wait_until_ready()
        assert image.run(*CLIENT, "topics", "--list", *SERVER).split() == ["t"]


def test_a_pod_of_a_stateful_set(image: Image, data: Path, tmp_path: Path) -> None:
    """Its id comes from its name; a mounted file is below the variables."""
    mounted = tmp_path / "etc"
    mounted.mkdir()
    (mounted / "broker.properties").write_text("num.partitions=4\nbroker.id=${pod:ordinal+100}\nlog.retention.ms=7\n")
    variables = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://${pod:name}.parley:9092", "KAFKA_NUM_PARTITIONS": "3"}
    where = {"/var/lib/parley/data": data, "/etc/parley": mounted}
    with Container(image, environment=variables, mounted=where, host_name="parley-2") as container:
        written = container.wait_until_ready()
        assert any(line.startswith("Broker 102 of cluster ") for line in written)
        assert written[-1].endswith("bootstrap.servers=parley-2.parley:9092")


def test_a_setting_that_is_misspelled(image: Image) -> None:
    with Container(image, environment={"KAFKA_NUM_PARTITION": "3"}) as container:
        assert container.wait() == (
            1,
            "Error: KAFKA_NUM_PARTITION would set num.partition, which is not a configuration key. "
            "Did you mean PARLEY_NUM_PARTITIONS?\n",
        )


@pytest.mark.soak
def test_a_container_with_little_memory(image: Image, data: Path) -> None:
    """A container writes more than its memory limit: the kernel drops cached pages and kills no process."""
    with (
        memory_limited("parley-test-of-image", 160 << 20) as cgroup,
        Container(image, mounted={"/var/lib/parley/data": data}, cgroup=cgroup) as container,
    ):
        container.wait_until_ready()
        image.run(*CLIENT, "topics", "--create", "--topic", "t", "--partitions", "3", *SERVER)
        amount = ("--num-records", "300000", "--record-size", "1000", "--throughput", "-1")
        image.run(*CLIENT, "perf", "produce", "--topic", "t", *amount, *SERVER)
        assert sum(file.stat().st_size for file in data.rglob("*.log")) > 160 << 20
        assert container.is_healthy()
        assert container.stop()[0] == 0
