"""The pods of the Helm chart, run as Kubernetes runs them: with the rendered command, variables, file, probes and hook.

This machine's loopback addresses stand for the pods' own, and folders for their volumes.
"""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parley.tools.checker import Trial
from tests.support.helm import manifests, rendered
from tests.support.ports import free_port
from tests.system.clusters import POLL_S
from tests.system.running import BrokerProcess

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak,
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


class Pod(BrokerProcess):
    """A pod of the StatefulSet. A container that ended is started again, with the same volumes."""

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
        """True if a page of the metrics' port responds with 200."""
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


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    internal, metrics = free_port(), free_port()
    text = rendered(
        store__url=f"local://{tmp_path}/coordination", ports__internal=internal, ports__metrics=metrics, config=QUICK
    )
    found = manifests(text)
    file = tmp_path / "broker.properties"
    address = "127.0.64.${pod:ordinal+1}"
    shared = found["ConfigMap", NAME]["data"]["broker.properties"]
    shared = shared.replace("${pod:name}.kafka-parley-brokers.default.svc.cluster.local", address)
    file.write_text(shared.replace("0.0.0.0", address).replace("/var/lib/parley", f"{tmp_path}/${{pod:name}}"))
    spec = found["StatefulSet", NAME]["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    (container,) = spec["template"]["spec"]["containers"]
    grace_s = spec["template"]["spec"]["terminationGracePeriodSeconds"]
    made = [Pod(tmp_path, ordinal, container, file, grace_s) for ordinal in range(spec["replicas"])]
    for pod in made:
        pod.bootstrap_servers = f"{pod.address}:{internal}"
    try:
        for pod in made:
            pod.launch()
        for pod in made:
            pod.wait_until_ready()
        yield made
    finally:
        for pod in made:
            pod.kill()


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
