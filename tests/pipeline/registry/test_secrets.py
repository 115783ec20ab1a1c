"""Marked secrets are used wherever the registry accepts one, and must not appear in any of its output."""

from __future__ import annotations

import asyncio
import logging
import ssl
import traceback
from pathlib import Path

import httpx
import pytest

from parley.broker.config import BrokerConfig
from parley.configuration.providers import read_configuration
from parley.pipeline.connect.errors import ConfigError, ConnectError
from parley.pipeline.registry.config import RegistryConfig
from parley.pipeline.registry.serving import run_registry
from parley.pipeline.service.errors import ServiceError
from tests.broker.security.secured_brokers import MODULES, bootstrap
from tests.broker.security.test_secrets import MARK, Marked, secret, texts_of
from tests.broker.security.test_secrets import running as running_broker

pytestmark = pytest.mark.slow

ONE_BROKER = "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"


def settings(marked: Marked, address: str) -> dict[str, str]:
    """Return a registry's settings: its login to the cluster, its key store and its users, all marked."""
    users, jaas = marked.folder / "users.properties", marked.folder / "jaas.conf"
    users.write_text(f"ada={secret('user')}\n")
    jaas.write_text(f'SchemaRegistry {{ PropertyFileLoginModule required file="{users}"; }};')
    issued = marked.authority.issue("CN=registry", "127.0.0.1")
    line = f'{MODULES}.plain.PlainLoginModule required username="alice" password="{secret("alice")}";'
    client = marked.client_properties() | {"sasl.jaas.config": line}
    return {f"kafkastore.{key}": value for key, value in client.items()} | {
        "kafkastore.bootstrap.servers": address,
        "listeners": "https://127.0.0.1:0",
        "ssl.keystore.location": str(issued.write_pkcs12(marked.folder / "registry.p12", secret("registry"))),
        "ssl.keystore.password": secret("registry"),
        "authentication.method": "BASIC",
        "java.security.auth.login.config": str(jaas),
        "unknown.password": secret("unknown"),
    }


async def pages(marked: Marked, config: RegistryConfig) -> list[str]:
    """Return the responses of a running registry to clients with the right and with a wrong password."""
    ready, stopping = asyncio.get_running_loop().create_future(), asyncio.Event()
    serving = asyncio.create_task(run_registry(config, stopping, ready.set_result))
    await asyncio.wait({ready, serving}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    read = []
    context = ssl.create_default_context(cadata=marked.authority.pem)
    async with httpx.AsyncClient(base_url=await ready, verify=context, timeout=60) as client:
        for password, status in (("user", 200), ("guess", 401)):
            login = ("ada", secret(password))
            page = await client.get("/subjects", auth=login)
            assert page.status_code == status
            wrong = await client.post("/subjects/s/versions", auth=login, json={"schema": "{"})
            read += [f"{each.headers} {each.text}" for each in (page, wrong)]
    stopping.set()
    await serving
    return read


async def test_no_secret_leaves_the_registry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    marked = Marked(tmp_path)
    path = marked.write()
    path.write_text(path.read_text() + ONE_BROKER)
    async with running_broker(BrokerConfig.from_properties(read_configuration(path))) as server:
        given = settings(marked, bootstrap(server))
        config = RegistryConfig.parse(given)
        assert secret("alice") in str(config.given)  # what is hidden is there
        texts = [repr(config), " ".join(config.unknown), *await pages(marked, config)]
        for changed in (
            {"ssl.keystore.password": secret("wrong")},
            {
                "kafkastore.sasl.jaas.config": given["kafkastore.sasl.jaas.config"].replace(
                    secret("alice"), secret("no")
                )
            },
            {"kafkastore.sasl.jaas.config": secret("line")},
            {"kafkastore.ssl.truststore.location": given["ssl.keystore.location"]},
        ):
            with pytest.raises((ConfigError, ConnectError, ServiceError, ValueError)) as raised:
                await pages(marked, RegistryConfig.parse(given | changed))
            texts.append("".join(traceback.format_exception(raised.value)))
    texts += map(texts_of, caplog.records)
    assert [text[max(0, text.find(MARK) - 200) : text.find(MARK) + 40] for text in texts if MARK in text] == []
