"""Connectors may override their clients' settings, but cannot send the worker's credentials elsewhere or
reveal them."""

from __future__ import annotations

import pytest

from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.connect.herder_results import TaskId
from parley.pipeline.connect.tasks.spec import ClientSettings, TaskSpec
from parley.pipeline.connect.worker_config import WorkerConfig

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": 'PlainLoginModule required username="worker" password="marked";',
}


def worker() -> WorkerConfig:
    return WorkerConfig({"bootstrap.servers": "a:1", **LOGIN}, {"bootstrap.servers": ["a:1"]})


def spec(**own: str) -> TaskSpec:
    config = {f"producer.override.{key.replace('_', '.')}": value for key, value in own.items()}
    return TaskSpec(id=TaskId("c", 0), tasks=1, is_sink=False, connector_config=config, task_config={"x": "marked"})


def test_the_workers_login_is_the_default() -> None:
    made = ClientSettings.of("producer", worker(), spec().connector_config).connection(worker(), "id")
    assert dict(made.security.items) == LOGIN


def test_another_cluster_gets_none_of_the_workers_credentials() -> None:
    own = spec(bootstrap_servers="attacker:1", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN")
    made = ClientSettings.of("producer", worker(), own.connector_config).connection(worker(), "id")
    assert made.bootstrap == "attacker:1"
    assert "sasl.jaas.config" not in dict(made.security.items)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "https://169.254.169.254/token"])
def test_a_connector_sends_no_file_and_asks_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="only the worker's own file"):
        ClientSettings.of("producer", worker(), spec(sasl_oauthbearer_token_endpoint_url=url).connector_config)


def test_no_representation_shows_a_secret() -> None:
    shown = (
        worker(),
        spec(sasl_jaas_config="marked"),
        ClientSettings.of("producer", worker(), spec().connector_config),
    )
    assert "marked" not in repr(shown)
