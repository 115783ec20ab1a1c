"""Spark shows no secret of a source or sink: in logs, the event log, plans, checkpoints, its UI and its REST API."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from parley import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

WAIT_S = 300
MARK = "marked-secret-"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
UNUSED = {
    f"kafka.{key}": f"{MARK}{number}"
    for number, key in enumerate(
        (
            "ssl.key.password",
            "ssl.keystore.password",
            "ssl.keystore.key",
            "ssl.truststore.password",
            "sasl.oauthbearer.client.credentials.client.secret",
        )
    )
}
"""Secrets that a listener without TLS does not need. Spark shows all options in the same way."""


def jaas(password: str) -> str:
    return f'{LOGIN} username="alice" password="{password}";'


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    users = f'{LOGIN} user_alice="{MARK}right";'
    with Broker(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": users,
        }
    ) as running:
        yield running


@pytest.fixture(scope="module")
def options(broker: Broker) -> dict[str, dict[str, str]]:
    """Return the options with the right password and with a wrong one. The topics exist, and one contains records."""
    addresses = {each.listener: f"127.0.0.1:{each.port}" for each in broker.server.endpoints}
    admin = AdminClient({"bootstrap.servers": addresses["PLAINTEXT"]})
    for topic, created in admin.create_topics([NewTopic("secrets-in", 2), NewTopic("secrets-out", 2)]).items():
        created.result(WAIT_S)
        assert topic
    producer = Producer({"bootstrap.servers": addresses["PLAINTEXT"]})
    for number in range(10):
        producer.produce("secrets-in", str(number), partition=number % 2)
    assert producer.flush(WAIT_S) == 0
    base = {
        "kafka.bootstrap.servers": addresses["SASL_PLAINTEXT"],
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        **UNUSED,
    }
    return {password: {**base, "kafka.sasl.jaas.config": jaas(f"{MARK}{password}")} for password in ("right", "wrong")}


def check_no_secret(job: Path, *names: str) -> None:
    """Check that no file of the job contains a marked secret, and that the job has written the files and folders
    ``names``."""
    leaks: dict[str, list[str]] = {}
    for file in filter(Path.is_file, job.rglob("*")):
        lines = file.read_bytes().decode(errors="replace").splitlines()
        if found := [line[max(0, line.index(MARK) - 200) :][:400] for line in lines if MARK in line]:
            leaks[str(file.relative_to(job))] = found[:3]
    assert leaks == {}
    assert set(names) <= {each.name for each in job.iterdir()}


def test_plans_errors_and_checkpoints_show_no_secret(
    options: dict[str, dict[str, str]], spark: SparkSession, tmp_path: Path
) -> None:
    from tests.pipeline.marked_secrets import Shown, fail, use

    shown = Shown(tmp_path / "shown")
    use(spark, shown, options["right"], tmp_path)
    fail(spark, shown, options["wrong"], tmp_path)
    check_no_secret(tmp_path, "shown", "checkpoint")


@pytest.mark.soak
def test_spark_shows_no_secret(options: dict[str, dict[str, str]], tmp_path: Path) -> None:
    """This includes the logs, the event log, the UI and the REST API of a Spark session that logs everything."""
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", "tests.pipeline.marked_secrets", str(tmp_path)]
        done = subprocess.run(command, input=json.dumps(options), text=True, stdout=log, stderr=log, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text()[-4000:]
    check_no_secret(tmp_path, "events", "shown", "log", "checkpoint")
