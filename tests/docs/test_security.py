"""The deployment of docs/security.md, typed from its first block to its last, in a separate folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from parley.configuration.providers import read_configuration
from parley.protocol.security.librdkafka import librdkafka_settings
from tests.support.ports import free_port
from tests.support.preloaded import preloaded_path

pytestmark = pytest.mark.system

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
START_SECONDS = 120
_BLOCK = re.compile(r"^```(bash|properties|ini)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(/etc/parley/[a-z.]+)`:\n*$")


class Deployment:
    """Types what the section shows. Its folders are below ``folder``, and the broker is on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"localhost:{free_port()}"
        for path in ("etc", "var", "var/parley"):
            (folder / path).mkdir(mode=0o700)
        self._environment = {**os.environ, "PATH": preloaded_path()}
        self._broker: subprocess.Popen[str] | None = None

    def here(self, text: str) -> str:
        """Return a text of the page, with the paths and the address that it has here."""
        for shown, real in (
            ("/etc/parley", str(self.folder / "etc")),
            ("/var/lib/parley", str(self.folder / "var" / "parley")),
            ("broker1.example:9093", self.address),
            ("broker1.example", "localhost"),
        ):
            text = text.replace(shown, real)
        return text

    def type(self, command: str) -> None:
        if command.startswith("parley start "):
            self._start(command.split())
            return
        done = subprocess.run(
            ["bash", "-c", f"umask 077; set -o pipefail; {command}"],
            env=self._environment, text=True, timeout=300, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"

    def _start(self, words: list[str]) -> None:
        log = (self.folder / "broker.log").open("w")
        with log:
            self._broker = subprocess.Popen(
                [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._broker.stdout is not None
        ready = any("bootstrap.servers=" in line for line in self._broker.stdout)
        assert ready, (self.folder / "broker.log").read_text()

    def close(self) -> None:
        if self._broker is not None:
            self._broker.terminate()
            try:
                assert self._broker.wait(START_SECONDS) == 0
            finally:
                self._broker.kill()
                self._broker.wait()
                assert self._broker.stdout is not None
                self._broker.stdout.close()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path)
    yield deployment
    deployment.close()


def test_the_deployment_works_as_it_is_shown(deployment: Deployment) -> None:
    section = PAGE.read_text().partition("## Deployment, step by step\n")[2].partition("\n## ")[0]
    assert len(_BLOCK.findall(section)) == 8
    for block in _BLOCK.finditer(section):
        kind, text = block[1], deployment.here(block[2])
        if kind == "bash":
            for command in text.splitlines():
                deployment.type(command)
        else:
            file = _FILE.search(section[: block.start()])
            assert file is not None, f"no file is named for\n{text}"
            path = Path(deployment.here(file[1]))
            path.write_text(text)
            path.chmod(0o600)
    _alice_sends_and_reads(deployment)
    _alice_sends_with_the_program(deployment)


def _alice_sends_with_the_program(deployment: Deployment) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", deployment.here(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "acknowledged\n"), done.stderr


def _alice_sends_and_reads(deployment: Deployment) -> None:
    etc = deployment.folder / "etc"
    assert not (etc / "alice.password").exists()
    as_alice = {
        key: text
        for key, text in read_configuration(etc / "alice.properties").items()
        if not key.startswith("config.providers")
    }
    settings = {**librdkafka_settings(as_alice), "bootstrap.servers": deployment.address}
    producer = Producer({**settings, "acks": "all"})
    producer.produce("orders", b"one")
    assert producer.flush(60) == 0
    with Consumer({**settings, "group.id": "billing", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["orders"])
        message = consumer.poll(60)
        while message is not None and message.error() is not None:  # the topic is not known yet
            message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"one"
