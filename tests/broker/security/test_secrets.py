"""Marked secrets are put wherever a secret can be configured, and searched for in all output.

Each secret contains MARK. The log is searched before the log writer replaces secrets in it.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import logging
import ssl
import traceback
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.server import BrokerServer
from parley.configuration.providers import read_configuration
from parley.consensus.registry import backend_factory
from parley.protocol.client import Client, NotAuthenticated
from parley.protocol.errors import KafkaError
from parley.protocol.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from parley.protocol.security.client_security import ClientSecurity, client_security
from parley.protocol.security.logins import PlainLogin, ScramLogin
from parley.tools.coordination.dump_and_restore import dump
from tests.broker.security.secured_brokers import MODULES, SecuredBrokers, bootstrap

MARK = "MARKED"
BROKER = 4


def secret(name: str) -> str:
    return f"{MARK}-{name}"


class Marked(SecuredBrokers):
    """Brokers whose every secret is marked, some in the file itself and some named by it."""

    def write(self) -> Path:
        """Return the properties file of a broker."""
        given = self.settings(1)
        users = "".join(f' user_{name}="{secret(name)}"' for name in ("alice", "broker"))
        issued = self.authority.issue("CN=broker-1", "127.0.0.1")
        secrets = self.folder / "secrets.properties"
        secrets.write_text(f"encoder={secret('encoder')}\ntoken={secret('token')}\n")
        given |= {
            "ssl.keystore.location": str(issued.write_pkcs12(self.folder / "broker.p12", secret("store"))),
            "ssl.keystore.password": secret("store"),
            "ssl.key.password": secret("key"),
            "listener.name.secure.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
            f'username="broker" password="{secret("broker")}"{users};',
            "config.providers": "file",
            "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
            "password.encoder.secret": f"${{file:{secrets}:encoder}}",
            "delegation.token.secret.key": f"${{file:{secrets}:token}}",
            "unknown.password": secret("unknown"),
            "config.providers.file.param.token": secret("parameter"),
            "metrics.listener": "https://127.0.0.1:0",
            "listener.name.metrics.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
            f'user_prometheus="{secret("metrics")}";',
        }
        path = self.folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        return path

    def of_alice(self, password: str) -> ClientSecurity:
        line = f'{MODULES}.plain.PlainLoginModule required username="alice" password="{password}";'
        return client_security(self.client_properties() | {"sasl.jaas.config": line})


@asynccontextmanager
async def running(config: BrokerConfig) -> AsyncIterator[BrokerServer]:
    server = BrokerServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def described() -> DescribeConfigsRequest:
    wanted = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name="1", configuration_keys=None
    )
    return DescribeConfigsRequest(resources=[wanted], include_synonyms=True, include_documentation=True)


def altered(name: str, value: str) -> IncrementalAlterConfigsRequest:
    change = IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER, resource_name="1", configs=[change]
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


async def responses_of(client: Client) -> list[str]:
    """What the broker responds where secrets are set, refused, and described."""
    responses = []
    for name, value in (
        ("listener.name.secure.ssl.truststore.password", secret("dynamic")),
        ("sasl.jaas.config", secret("refused")),
        ("listener.name.secure.plain.sasl.jaas.config", secret("malformed")),
        ("another.password", secret("another")),
    ):
        responses.append(repr(await client.send(altered(name, value))))
    responses.append(repr(await client.send(described())))
    return responses


def texts_of(record: logging.LogRecord) -> str:
    """Return all that a handler can see of a log record, with the traceback."""
    trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
    return f"{record.getMessage()} {vars(record)} {trace}"


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level(logging.DEBUG)
    return []


@pytest.mark.slow
async def test_no_secret_leaves_the_broker(
    tmp_path: Path, everything: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    older = _objects()
    marked = Marked(tmp_path)
    config = BrokerConfig.from_properties(read_configuration(marked.write()))
    async with await backend_factory({})(marked.store) as keeper, running(config) as server:
        async with Client(bootstrap(server), security=marked.of_alice(secret("alice"))) as client:
            everything += await responses_of(client)
        for wrong in (secret("wrong"), ""):
            with pytest.raises(NotAuthenticated) as raised:
                await Client(bootstrap(server), security=marked.of_alice(wrong)).metadata([])
            everything.append("".join(traceback.format_exception(raised.value)))
        everything += [await asyncio.to_thread(_metrics, server, marked, one) for one in ("metrics", "guess")]
        everything.append(json.dumps(await dump(keeper, show_secrets=False)))
        everything.append(_representations(older))
        assert secret("dynamic") in str(server.parts.config().given.values())  # what is hidden is there
        stored = json.dumps(await dump(keeper, show_secrets=True))
        assert "listener.name.secure.ssl.truststore.password" in stored
        assert secret("dynamic") not in stored
    everything += map(texts_of, caplog.records)
    assert [text[max(0, text.find(MARK) - 200) : text.find(MARK) + 40] for text in everything if MARK in text] == []


def _metrics(server: BrokerServer, marked: Marked, password: str) -> str:
    """Return the page of metrics, or the error that a user with the wrong password gets."""
    assert server.serving.exporter is not None
    url = f"https://127.0.0.1:{server.serving.exporter.port}/metrics"
    login = base64.b64encode(f"prometheus:{secret(password)}".encode()).decode()
    asked = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
    context = ssl.create_default_context(cadata=marked.authority.pem)
    try:
        with urllib.request.urlopen(asked, timeout=30, context=context) as page:
            text: str = page.read().decode()
    except urllib.error.HTTPError as error:
        text = f"{error} {error.read().decode()}"
    assert ("parley_start_time_seconds" in text) is (password == "metrics")
    return text


def _objects() -> list[Any]:
    """Each object of Parley's, but for messages: the representation of a message is its content."""
    gc.collect()
    # Of some types of other packages the module is no text.
    modules = ((each, str(type(each).__module__)) for each in gc.get_objects())
    return [
        each
        for each, module in modules
        if module.startswith("parley.") and not module.startswith("parley.protocol.messages.")
    ]


def _representations(older: list[Any]) -> str:
    """Return the representation of each object that a debugger may show, without those that other tests left behind."""
    known = set(map(id, older))
    shown = map(_shown, (each for each in _objects() if id(each) not in known))
    return "\n".join(line for line in shown if MARK in line)


def _shown(each: Any) -> str:
    try:
        return f"{type(each).__module__}.{type(each).__qualname__}: {each!r}"
    except (AttributeError, RuntimeError):
        return ""  # a broker that several tests share makes or changes it in another thread


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ssl.keystore.password", secret("wrong")),
        ("ssl.keystore.key", secret("key")),
        ("listener.name.secure.plain.sasl.jaas.config", secret("line")),
        ("listener.name.secure.plain.sasl.jaas.config", f'a.PlainLoginModule required password="{secret("p")}";'),
        ("delegation.token.secret.key", "${file:/nowhere:token}"),
    ],
)
async def test_no_failed_start_shows_a_secret(
    tmp_path: Path, everything: list[str], caplog: pytest.LogCaptureFixture, key: str, value: str
) -> None:
    marked = Marked(tmp_path)
    path = marked.write()
    path.write_text(path.read_text() + f"{key}={value}\n")
    with pytest.raises((ConfigError, ValueError, KafkaError)) as raised:
        async with running(BrokerConfig.from_properties(read_configuration(path))):
            pass
    everything.append("".join(traceback.format_exception(raised.value)))
    everything += map(texts_of, caplog.records)
    assert [text for text in everything if MARK in text] == []


def test_the_repr_of_client_objects_shows_no_secret(tmp_path: Path) -> None:
    held: list[Any] = [
        PlainLogin("alice", secret("p")),
        ScramLogin("SCRAM-SHA-256", "alice", secret("p")),
        Marked(tmp_path).of_alice(secret("p")),
    ]
    assert MARK not in repr(held)
