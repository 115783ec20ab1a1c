"""TLS and logins of the registry's REST API; settings that cannot be used."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from parley.pipeline.connect.errors import ConfigError, ConnectError
from parley.pipeline.registry.config import RegistryConfig
from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.registry.running import running
from tests.support.certificates import Authority


@pytest.mark.slow
def test_tls_and_basic_authentication(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    authority = Authority()
    (tmp_path / "users.properties").write_text("ada=secret\n")
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(f'SchemaRegistry {{ PropertyFileLoginModule required file="{tmp_path / "users.properties"}"; }};')
    settings = {
        "listeners": "https://127.0.0.1:0",
        "ssl_keystore_location": str(authority.issue("registry", "127.0.0.1").write_pem(tmp_path / "registry.pem")),
        "authentication_method": "BASIC",
        "java_security_auth_login_config": str(jaas),
    }
    with running(kafka_broker.bootstrap_servers, "schemas-secured", **settings) as url:
        context = ssl.create_default_context(cadata=authority.pem)
        with httpx.Client(base_url=url, verify=context) as client:
            assert client.get("/subjects").status_code == 401
            assert client.get("/subjects", auth=("ada", "wrong")).status_code == 401
            assert client.get("/subjects", auth=("ada", "secret")).json() == []


@pytest.mark.parametrize(
    "given",
    [
        {"schema.compatibility.level": "strange"},
        {"kafkastore.topic.replication.factor": "0"},
        {"listeners": "ftp://a:1"},
        {"kafkastore.security.protocol": "SSH"},
    ],
)
def test_settings_that_cannot_be_used(given: dict[str, str]) -> None:
    with pytest.raises((ConfigError, ConnectError)):
        RegistryConfig.parse(given)
