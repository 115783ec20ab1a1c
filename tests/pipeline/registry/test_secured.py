"""TLS and logins of the registry's REST API; settings that cannot be used."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest

from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.registry.config import RegistryConfig
from parley.pipeline.registry.serving import run_registry
from parley.pipeline.service.errors import ServiceError
from parley.pipeline.service.server import Listener, RestServer
from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.registry.running import running
from tests.support.certificates import Authority
from tests.support.http import HTTP_TIMEOUT_S


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
        with httpx.Client(base_url=url, verify=context, timeout=HTTP_TIMEOUT_S) as client:
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
    with pytest.raises((ConfigError, ServiceError)):
        RegistryConfig.parse(given)


async def test_a_port_that_is_taken_is_said_with_the_registrys_option(kafka_broker: KafkaBroker) -> None:
    async with RestServer([Listener("127.0.0.1", 0)]) as server:
        taken = f"http://127.0.0.1:{server.addresses[0].port}"
        config = RegistryConfig.parse(
            {"kafkastore.bootstrap.servers": kafka_broker.bootstrap_servers, "listeners": taken}
        )
        with pytest.raises(ServiceError, match=r"Is another registry running.*--listeners http"):
            await run_registry(config, asyncio.Event(), lambda url: None)


def test_by_default_only_this_machine_reaches_it() -> None:
    assert RegistryConfig.parse({}).listeners == [Listener("127.0.0.1", 8081)]


def test_settings_that_nothing_reads_are_found() -> None:
    given = {"listener": "http://:1", "kafkastore.ssl.protocol": "TLSv1.3", "ssl.client.auth": "required"}
    assert RegistryConfig.parse(given).unknown == ["listener"]
