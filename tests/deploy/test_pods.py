"""The pods of the Helm chart, run as Kubernetes runs them: with the rendered command, variables, file, probes and hook.

This machine's loopback addresses stand for the pods' own, and folders for their volumes.
"""

from __future__ import annotations

import http.client
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography import x509

from parley.tools.checker import Trial
from parley.tools.checker.trial import create
from tests.support.certificates import Authority
from tests.support.helm import manifests, rendered
from tests.support.ports import free_port
from tests.system.clusters import POLL_S
from tests.system.running import BrokerProcess

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a host name for each pod"),
]

NAME = "kafka-parley"
WAIT_SECONDS = 60
QUICK = {
    "coordination.session.timeout.ms": 2000,
    "replica.lag.time.max.ms": 3000,
    "offsets.topic.num.partitions": 5,
}
RECORDS = 100
"""How many records are acknowledged before the next pod is stopped."""


class Secret:
    """A Secret as the kubelet mounts it: links to a folder that a change replaces at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._changes = 0
        folder.mkdir()

    def hold(self, **files: str) -> None:
        """Replace what the Secret holds; ``__`` in a name stands for a dot."""
        self._changes += 1
        data = self.folder / f"..{self._changes}"
        data.mkdir()
        for name, text in files.items():
            (data / name.replace("__", ".")).write_text(text)
            link = self.folder / name.replace("__", ".")
            if not link.is_symlink():
                link.symlink_to(f"..data/{link.name}")
        (self.folder / "..new").symlink_to(data.name)
        (self.folder / "..new").rename(self.folder / "..data")


class Pod(BrokerProcess):
    """A pod of the StatefulSet. A container that ended is started again, with the same volumes."""

    preloaded = False

    def __init__(self, folder: Path, ordinal: int, container: dict[str, Any], file: Path, grace_s: int) -> None:
        self.name = f"{NAME}-{ordinal}"
        super().__init__(folder / self.name, port=0)
        self.address = f"127.0.64.{ordinal + 1}"
        self._container = container
        self._file = file
        self.grace_s = grace_s

    def command(self) -> list[str]:
        own = [] if os.geteuid() == 0 else ["--map-root-user"]
        variables = [f"{each['name']}={each.get('value', self.address)}" for each in self._container["env"]]
        named = ["unshare", *own, "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        return [*named, "env", *variables, sys.executable, "-m", "parley", *self._container["args"], str(self._file)]

    def probe(self, name: str) -> bool:
        """What the kubelet finds."""
        return self.responds(self._container[f"{name}Probe"]["httpGet"]["path"])

    def responds(self, path: str) -> bool:
        """Return True if a page of the metrics' port responds with 200."""
        (port,) = [each["containerPort"] for each in self._container["ports"] if each["name"] == "metrics"]
        connection = http.client.HTTPConnection(self.address, port, timeout=WAIT_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except ConnectionError:
            return False
        finally:
            connection.close()

    def end(self) -> None:
        """The hook, then SIGTERM; the kubelet would kill the broker after the grace period."""
        began = time.monotonic()
        bash, option, script = self._container["lifecycle"]["preStop"]["exec"]["command"]
        subprocess.run([bash, option, script.replace("127.0.0.1", self.address)], timeout=self.grace_s, check=True)
        assert self.stop() == 0, self.log()
        assert time.monotonic() - began < self.grace_s


def until(condition: Any, what: str) -> None:
    """Wait for a condition. Raises TimeoutError."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(POLL_S)


def made(folder: Path, settings: Mapping[str, object]) -> list[Pod]:
    """Return the pods of a release, with this machine's addresses and with ``folder`` for what they mount. None is
    started."""
    internal, metrics = free_port(), free_port()
    quick = {"ports.internal": internal, "ports.metrics": metrics, "config": QUICK}
    found = manifests(rendered(settings={**quick, **settings}))
    address = "127.0.64.${pod:ordinal+1}"
    shared = found["ConfigMap", NAME]["data"]["broker.properties"]
    shared = shared.replace("${pod:name}.kafka-parley-brokers.default.svc.cluster.local", address)
    shared = shared.replace("0.0.0.0", address).replace("/etc/parley-", f"{folder}/")
    file = folder / "broker.properties"
    file.write_text(shared.replace("/var/lib/parley", f"{folder}/${{pod:name}}"))
    spec = found["StatefulSet", NAME]["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    (container,) = spec["template"]["spec"]["containers"]
    grace_s = spec["template"]["spec"]["terminationGracePeriodSeconds"]
    pods = [Pod(folder, ordinal, container, file, grace_s) for ordinal in range(spec["replicas"])]
    for pod in pods:
        pod.bootstrap_servers = f"{pod.address}:{internal}"
    return pods


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    found = made(tmp_path, {"store.url": f"local://{tmp_path}/coordination"})
    try:
        for pod in found:
            pod.launch()
        for pod in found:
            pod.wait_until_ready()
        yield found
    finally:
        for pod in found:
            pod.kill()


@pytest.mark.soak
def test_a_rolling_update_loses_nothing(pods: list[Pod]) -> None:
    """As the StatefulSet's controller does it: from the highest number down, each when the one before is ready."""
    trial = Trial(",".join(pod.bootstrap_servers for pod in pods), "t", partitions=6, producers=2, rate=200)
    trial.create_topic(3)
    with trial:
        for pod in pods:
            until(lambda pod=pod: pod.probe("readiness"), f"{pod.name} is not ready")
        for pod in reversed(pods):
            trial.wait_for_acknowledged(RECORDS)
            pod.end()
            assert not pod.probe("liveness")
            trial.wait_for_acknowledged(RECORDS)  # two replicas are enough
            pod.start()
            assert pod.probe("startup")
            until(lambda pod=pod: pod.probe("readiness"), f"{pod.name} does not become ready again")
            assert pod.responds("/stopz")
        trial.wait_for_acknowledged(RECORDS)
    assert not trial.errors
    verdict = trial.verdict()
    assert verdict.ok, verdict


@pytest.mark.soak
def test_a_pod_is_not_stopped_while_another_has_not_caught_up(pods: list[Pod]) -> None:
    trial = Trial(",".join(pod.bootstrap_servers for pod in pods), "t", partitions=6, producers=1, rate=100)
    trial.create_topic(3)
    with trial:
        for pod in pods:
            until(lambda pod=pod: pod.probe("readiness"), f"{pod.name} is not ready")
        pods[0].kill()
        until(lambda: not pods[2].responds("/stopz"), "pod 2 does not learn that its replicas are needed")
        assert pods[2].probe("readiness"), "its own replicas are in sync"
        pods[0].start()
        pods[2].end()  # the hook waits until the first pod has caught up
        pods[2].start()
        until(lambda: pods[2].probe("readiness"), "pod 2 does not become ready again")
    assert not trial.errors
    verdict = trial.verdict()
    assert verdict.ok, verdict


def test_secrets_and_a_renewed_certificate(tmp_path: Path) -> None:
    """A pod with TLS and logins. The kubelet replaces the Secret; connections then get the new certificate."""
    authority = Authority()
    tls, sasl = Secret(tmp_path / "tls"), Secret(tmp_path / "sasl")
    first, second = (authority.issue("broker", "127.0.64.1") for _ in range(2))
    tls.hold(**{"tls-combined__pem": first.key() + first.chain, "ca__crt": authority.pem})
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    sasl.hold(jaas=f'{login} username="broker" password="b-marked" user_broker="b-marked" user_alice="a-marked";')
    secured = {"tls.secretName": "tls", "sasl.secretName": "sasl", "sasl.mechanism": "PLAIN"}
    (pod,) = made(tmp_path, {"brokers": 1, **secured})
    (tmp_path / "ca.pem").write_text(authority.pem)
    client: dict[str, str | int | float | bool] = {
        "bootstrap.servers": pod.bootstrap_servers, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
        "sasl.username": "alice", "sasl.password": "a-marked", "ssl.ca.location": str(tmp_path / "ca.pem"),
    }  # fmt: skip
    host, port = pod.bootstrap_servers.split(":")
    try:
        pod.start()
        create(AdminClient(client), NewTopic("t", 1, 1))
        assert pod.probe("readiness")
        assert served(host, int(port)) == first.certificate.serial_number
        tls.hold(**{"tls-combined__pem": second.key() + second.chain, "ca__crt": authority.pem})
        until(lambda: served(host, int(port)) == second.certificate.serial_number, "the certificate is not renewed")
        assert AdminClient(client).list_topics("t", timeout=WAIT_SECONDS).topics["t"].partitions
        assert "marked" not in pod.log()
    finally:
        pod.kill()


def served(host: str, port: int) -> int:
    """Return the serial number of the certificate that a listener shows."""
    return x509.load_pem_x509_certificate(ssl.get_server_certificate((host, port)).encode()).serial_number
