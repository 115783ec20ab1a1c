"""The console beside a broker: its settings, its process, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import httpx
import pytest

from parley import Broker
from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.metadata.types import Endpoint
from parley.broker.startup import console_process
from parley.broker.startup.console_process import ConsoleProcess, console_settings
from tests.support.http import HTTP_TIMEOUT_S

ANY_PORT = {"console.listener": "http://127.0.0.1:0"}
PATIENCE_S = 60
TWO = {
    "listeners": "BROKERS://127.0.0.1:1,USERS://127.0.0.1:2",
    "listener.security.protocol.map": "BROKERS:PLAINTEXT,USERS:SASL_SSL",
    "inter.broker.listener.name": "BROKERS",
    "sasl.enabled.mechanisms": "GSSAPI,SCRAM-SHA-256",
    "ssl.keystore.location": "/own.pem",
    "ssl.truststore.location": "/trust.pem",
    "ssl.truststore.type": "PEM",
    "console.listener": "http://127.0.0.1:0",
}
ENDPOINTS = (Endpoint("BROKERS", "PLAINTEXT", "127.0.0.1", 1), Endpoint("USERS", "SASL_SSL", "::1", 2))


def settings_of(**changes: str) -> dict[str, Any]:
    given = TWO | {key.replace("_", "."): text for key, text in changes.items()}
    return console_settings(BrokerConfig.from_properties(given), ENDPOINTS)


def test_the_console_is_a_client_of_the_users_listener_without_the_brokers_identity() -> None:
    found = settings_of()
    assert found["bootstrap"] == "[::1]:2"
    assert found["client"] == {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256",
        "ssl.truststore.location": "/trust.pem", "ssl.truststore.type": "PEM",
    }  # fmt: skip
    found = settings_of(console_broker_listener="brokers")
    assert (found["bootstrap"], found["client"]) == ("127.0.0.1:1", {"security.protocol": "PLAINTEXT"})


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("console.broker.listener", "OTHERS", "one of BROKERS, USERS"),
        ("sasl.enabled.mechanisms", "GSSAPI", "users of the console type passwords"),
        ("console.listener", "127.0.0.1:8090", "http://host:port"),
        ("listener.name.console.ssl.keystore.location", "x.pem", "https://host:port"),
    ],
)
def test_settings_that_cannot_be_used(key: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        console_settings(BrokerConfig.from_properties(TWO | {key: value}), ENDPOINTS)


def test_without_the_extra_the_broker_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name == "uvicorn" else ModuleSpec(name, None)

    monkeypatch.setattr(console_process, "find_spec", find)
    with pytest.raises(ConfigError, match=r"console\.listener.*extra console: pip install.*uvicorn"), Broker(ANY_PORT):
        pass


async def until(found: Callable[[], Any]) -> Any:
    """Wait until something is found."""
    async with asyncio.timeout(PATIENCE_S):
        while not (value := found()):  # noqa: ASYNC110 - the state of another process
            await asyncio.sleep(0.05)
    return value


def has_ended(pid: int) -> bool:
    """Return True if the process does not run; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def console_of(broker: Broker) -> ConsoleProcess:
    console = broker.server.serving.console
    assert console is not None
    return console


@pytest.mark.slow
async def test_a_broker_runs_the_console_and_starts_it_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(console_process, "PAUSE_MIN_S", 0.05)
    caplog.set_level(logging.INFO)
    async with Broker(ANY_PORT, data_dir=tmp_path) as broker:
        console = console_of(broker)
        url = await until(lambda: console.url)
        async with httpx.AsyncClient(base_url=url, timeout=HTTP_TIMEOUT_S) as client:
            assert not (await client.get("/api/session")).json()["loginRequired"]
            overview = (await client.get("/api/overview")).json()
            assert overview["brokers"][0]["alive"]
            assert (await client.get("/api/coordination")).json()["store"]["store"].startswith("local://")
        first = console.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: console.url and console.pid != first)
        async with httpx.AsyncClient(base_url=console.url, timeout=HTTP_TIMEOUT_S) as client:
            assert (await client.get("/api/session")).status_code == 200
        second = console.pid
        assert second is not None
    assert has_ended(second)
    lines = [record.getMessage() for record in caplog.records if "console" in record.getMessage()]
    assert lines == ["the console is ready", "the console has ended and will be restarted", "the console is ready"]


@pytest.mark.slow
async def test_the_console_ends_when_its_broker_is_killed() -> None:
    program = (
        "import parley, sys, time\n"
        "with parley.Broker({'console.listener': 'http://127.0.0.1:0'}) as broker:\n"
        "    console = broker.server.serving.console\n"
        "    while not console.url: time.sleep(0.05)\n"
        "    print(console.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    assert not has_ended(pid)
    process.kill()
    await process.wait()
    await until(lambda: has_ended(pid))


@pytest.mark.slow
async def test_an_address_in_use_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with Broker({"console.listener": address}):
            record = await until(lambda: next((r for r in caplog.records if "console has ended" in r.message), None))
    assert "in use" in record.reason


@pytest.mark.slow
async def test_users_of_a_listener_with_logins_log_in(tmp_path: Path) -> None:
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,USERS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": f'{plain} user_alice="a";',
        "console.read.only": "true",
    }
    async with Broker(settings | ANY_PORT, data_dir=tmp_path) as broker:
        url = await until(lambda: console_of(broker).url)
        async with httpx.AsyncClient(base_url=url, timeout=HTTP_TIMEOUT_S) as client:
            opened = (await client.get("/api/session")).json()
            assert (opened["loginRequired"], opened["mechanism"], opened["readOnly"]) == (True, "PLAIN", True)
            headers = {"x-csrf-token": opened["csrf"]}
            login = {"user": "alice", "password": "a"}
            assert (await client.post("/api/login", json=login, headers=headers)).json()["user"] == "alice"
            assert (await client.get("/api/overview")).status_code == 200
