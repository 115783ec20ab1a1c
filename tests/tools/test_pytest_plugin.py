"""The pytest plugin, beyond what docs/embedding.md shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each test runs pytest

TESTS = """
import pytest
from confluent_kafka.admin import AdminClient
from parley.protocol.errors import ErrorCode, KafkaError


def partitions(broker, name):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    return len(admin.list_topics(name, timeout=60).topics[name].partitions)


def test_topics(kafka_broker):
    assert kafka_broker.create_topic("a", partitions=3) == "a"
    assert partitions(kafka_broker, "a") == 3
    with pytest.raises(KafkaError) as refused:
        kafka_broker.create_topic("a")
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaError):
        kafka_broker.create_topic("b", configs={"no.such": "1"})


async def test_topics_from_a_running_loop(kafka_broker):
    kafka_broker.create_topic("from-async")


def test_settings(kafka_broker):
    partitions(kafka_broker, "made-by-asking")
    kafka_broker.create_topic("c", partitions=-1)
    assert partitions(kafka_broker, "c") == 5


def test_the_broker_is_the_same_for_all(kafka_broker):
    assert partitions(kafka_broker, "a") == 3
"""


CLUSTER_TESTS = """
from confluent_kafka.admin import AdminClient


def test_it(kafka_cluster):
    assert kafka_cluster.brokers == [1, 2, 3]
    assert kafka_cluster.create_topic("a", partitions=2) == "a"
    kafka_cluster.create_topic("b", replicas=1)
    topics = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers}).list_topics(timeout=60).topics
    assert [sorted(one.replicas) for one in topics["a"].partitions.values()] == [[1, 2, 3]] * 2
    assert len(topics["b"].partitions[0].replicas) == 1


def test_hurting_it(kafka_cluster):
    kafka_cluster.kill(1)
    kafka_cluster.restart(1)
    kafka_cluster.stop(2)
    kafka_cluster.restart(2)
    assert kafka_cluster.create_topic("c") == "c"
"""


def _pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)


def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_a_broker.py").write_text(TESTS)
    (tmp_path / "test_a_cluster.py").write_text(CLUSTER_TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nkafka_broker_config =\n    num.partitions=4\n    delete.topic.enable=true\n"
    )
    done = _pytest(tmp_path, "--kafka-broker-config", "num.partitions=5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_a_setting_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(kafka_broker): pass")
    done = _pytest(tmp_path, "--kafka-broker-config", "nonsense")
    assert done.returncode == 1
    assert "takes key=value" in done.stdout


def test_nothing_is_imported_before_it_is_used() -> None:
    program = (
        "import sys, parley.tools.pytest_plugin;"
        "heavy = {'parley.broker', 'parley.protocol', 'parley.storage', 'uvloop', 'confluent_kafka'};"
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
