"""``metrics.listener`` with TLS and users, as HTTP clients see it."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.metrics.access import USERS_KEY, MetricsAccess
from parley.broker.metrics.exporter import Exporter
from parley.broker.metrics.health import Health
from parley.broker.metrics.http_server import CONNECTIONS_PER_ADDRESS_MAX, REFUSED_MAX
from parley.broker.metrics.registry import Metrics
from parley.broker.runtime.clock import SYSTEM_CLOCK
from tests.broker.metrics.conftest import PATIENCE_S
from tests.broker.network.harness import eventually
from tests.support.certificates import Authority, Issued

AUTHORITY = Authority()
SECRET = "s3cret:of prometheus"
USERS = {USERS_KEY: f'org.apache.kafka.common.security.plain.PlainLoginModule required user_prometheus="{SECRET}";'}


def tls(folder: Path, prefix: str = "listener.name.metrics.") -> dict[str, str]:
    own = AUTHORITY.issue("CN=broker", "127.0.0.1", "localhost").write_pem(folder / "broker.pem")
    return {
        "metrics.listener": "https://127.0.0.1:0",
        f"{prefix}ssl.keystore.location": str(own),
        f"{prefix}ssl.truststore.location": str(AUTHORITY.write(folder / "trust.pem")),
    }


class Asking:
    """A client of the exporter."""

    def __init__(self, port: int, *, is_tls: bool) -> None:
        self.port = port
        self._is_tls = is_tls

    async def get(
        self, path: str, user: tuple[str, str] | None = None, *, identity: Issued | None = None, folder: Path = Path()
    ) -> tuple[int, str]:
        """Return the status and the body."""
        context = ssl.create_default_context(cadata=AUTHORITY.pem)
        if identity is not None:
            context.load_cert_chain(identity.write_pem(folder / "client.pem"))
        header = "Basic " + base64.b64encode(":".join(user or ()).encode()).decode()
        return await asyncio.to_thread(self._get, path, {"Authorization": header} if user else {}, context)

    def _get(self, path: str, headers: dict[str, str], context: ssl.SSLContext) -> tuple[int, str]:
        connection = (
            HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE_S, context=context)
            if self._is_tls
            else HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        )
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@asynccontextmanager
async def serving(config: Callable[[], BrokerConfig]) -> AsyncIterator[Asking]:
    health = Health()
    health.ready()
    health.trouble("directory /a", "I/O error")
    address = config().metrics_address
    assert address is not None
    exporter = Exporter(
        Metrics(),
        health,
        loop=asyncio.get_running_loop(),
        clock=SYSTEM_CLOCK,
        host=address[0],
        port=0,
        access=MetricsAccess(config),
    )
    try:
        yield Asking(exporter.port, is_tls=config().metrics_is_tls)
    finally:
        exporter.close()


def configured(**given: str) -> Callable[[], BrokerConfig]:
    quick = {"metrics.listener": "127.0.0.1:0", "connection.failed.authentication.delay.ms": "0"}
    config = BrokerConfig.from_properties(quick | given)
    return lambda: config


def facts(body: str) -> set[str]:
    return set(json.loads(body))


@pytest.mark.parametrize("prefix", ["listener.name.metrics.", ""])
async def test_https(tmp_path: Path, prefix: str) -> None:
    async with serving(configured(**tls(tmp_path, prefix))) as client:
        status, text = await client.get("/metrics")
        assert (status, "parley_start_time_seconds" in text) == (200, True)
        status, body = await client.get("/healthz")
        assert (status, facts(body)) == (200, {"status", "problems"}), "without users there is no login"
        with pytest.raises((OSError, HTTPException)):
            await Asking(client.port, is_tls=False).get("/metrics")


@pytest.mark.slow
@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_login(tmp_path: Path, is_tls: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(configured(**USERS, **(tls(tmp_path) if is_tls else {}))) as client:
        assert (await client.get("/metrics", ("prometheus", SECRET)))[0] == 200
        for user in (None, ("prometheus", "a guess"), ("prometheus", ""), ("bob", SECRET), ("", "")):
            for path in ("/metrics", "/metrics?name[]=up", "/", "/nowhere"):
                assert await client.get(path, user) == (401, "A user of the metrics listener must log in.\n")
            status, body = await client.get("/healthz", user)
            assert (status, json.loads(body)) == (200, {"status": "degraded"}), "probes need no login, and see no facts"
        assert facts((await client.get("/healthz", ("prometheus", SECRET)))[1]) == {"status", "problems"}
    refused = [record.__dict__ for record in caplog.records if record.getMessage() == "authentication failed"]
    assert refused[0]["claimed_user"] == "prometheus"
    assert SECRET not in caplog.text
    assert "a guess" not in caplog.text


async def test_each_response_has_its_own_length() -> None:
    async with serving(configured(**USERS)) as client:
        assert await client.get("/", ("prometheus", SECRET)) == (
            404,
            "Unknown path. Available: /metrics, /healthz, /readyz, /livez, /insyncz, /stopz.\n",
        )
        assert await client.get("/") == (401, "A user of the metrics listener must log in.\n")


async def test_a_guess_at_a_probe_is_refused_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(configured(**USERS)) as client:
        assert await client.get("/healthz") == (200, '{"status": "degraded"}\n')
        assert not caplog.records, "probes need no login"
        assert (await client.get("/healthz", ("p" * 1000, "a guess")))[0] == 200
    (refused,) = caplog.records
    assert (refused.getMessage(), refused.__dict__["claimed_user"]) == ("authentication failed", "p" * 64)


async def test_a_failure_ends_its_connection_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(configured(**tls(tmp_path))) as client:
        with monkeypatch.context() as patch:
            patch.setattr(MetricsAccess, "current", lambda _: 1 / 0)
            with pytest.raises((OSError, HTTPException)):
                await client.get("/healthz")
        assert (await client.get("/healthz"))[0] == 200


async def test_client_certificates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    revoked = AUTHORITY.issue("mallory")
    (tmp_path / "revoked.pem").write_text(AUTHORITY.revocation_list(revoked))
    more = {
        "listener.name.metrics.ssl.client.auth": "required",
        "listener.name.metrics.ssl.crl.location": str(tmp_path / "revoked.pem"),
    }
    async with serving(configured(**tls(tmp_path), **more)) as client:
        assert (await client.get("/metrics", identity=AUTHORITY.issue("alice"), folder=tmp_path))[0] == 200
        for identity in (None, Authority("foreign").issue("alice"), revoked):
            with pytest.raises((OSError, HTTPException)):
                await client.get("/metrics", identity=identity, folder=tmp_path)
        assert (await client.get("/metrics", identity=AUTHORITY.issue("alice"), folder=tmp_path))[0] == 200
        await eventually(lambda: bool(caplog.records))
    assert "TLS handshake failed" in caplog.records[0].__dict__["reason"]


async def test_changes_need_no_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    current = configured(**tls(tmp_path), **USERS)()
    async with serving(lambda: current) as client:
        other = {USERS_KEY: USERS[USERS_KEY].replace("prometheus=", "grafana=")}
        current = current.with_dynamic({}, other)
        assert (await client.get("/metrics", ("prometheus", SECRET)))[0] == 401
        assert (await client.get("/metrics", ("grafana", SECRET)))[0] == 200
        Authority("foreign").issue("CN=broker", "127.0.0.1").write_pem(tmp_path / "broker.pem")
        with pytest.raises(ssl.SSLCertVerificationError):
            await client.get("/metrics", ("grafana", SECRET))
        AUTHORITY.issue("CN=the broker once more", "127.0.0.1").write_pem(tmp_path / "broker.pem")
        assert (await client.get("/metrics", ("grafana", SECRET)))[0] == 200
        (tmp_path / "broker.pem").unlink()
        assert (await client.get("/metrics", ("grafana", SECRET)))[0] == 200, "the old certificate stays"
        assert (
            "could not change the security settings of a listener: the previous settings stay in use" in caplog.messages
        )


@pytest.mark.slow
async def test_clients_that_never_finish_a_handshake_make_room(tmp_path: Path) -> None:
    async with serving(configured(**tls(tmp_path), **USERS)) as client:
        silent = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(CONNECTIONS_PER_ADDRESS_MAX)]
        for _ in range(CONNECTIONS_PER_ADDRESS_MAX):
            assert (await client.get("/livez"))[0] == 200
        for each in silent:
            each.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metrics.listener": "https://127.0.0.1:0"}, "needs ssl.keystore.location or ssl.keystore.key"),
        ({USERS_KEY: 'a.PlainLoginModule required username="x" password="y";'}, "PlainLoginModule with users"),
        ({USERS_KEY: 'a.ScramLoginModule required user_a="b";'}, "PlainLoginModule with users"),
        ({USERS_KEY: f'{SECRET} required user_a="b"'}, "a JAAS entry"),
    ],
)
def test_a_metrics_listener_with_invalid_settings_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        MetricsAccess(configured(**given))
    assert SECRET not in str(refused.value)


def test_keys_of_tls_without_https_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listener"):
        configured(**tls(tmp_path) | {"metrics.listener": "127.0.0.1:0"})


@pytest.mark.parametrize("text", ["https://", "https://:1", "https://a:b", "https://a:1/metrics", "ftp://a:1"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listener"):
        configured(**{"metrics.listener": text})


@pytest.mark.slow
async def test_curl(tmp_path: Path) -> None:
    async with serving(configured(**tls(tmp_path), **USERS)) as client:
        words = ["curl", "-sS", "--fail", "--cacert", str(tmp_path / "trust.pem"), "-u", f"prometheus:{SECRET}"]
        words.append(f"https://localhost:{client.port}/metrics")
        done = await asyncio.to_thread(
            lambda: subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "parley_start_time_seconds" in done.stdout


async def test_clients_that_wait_after_a_wrong_password_keep_no_probe_out() -> None:
    """More clients than have room, all from the address of the probe, which gets its response before them."""
    async with serving(configured(**USERS, **{"connection.failed.authentication.delay.ms": "60000"})) as client:
        guesses = [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(2 * REFUSED_MAX)]
        for _, writer in guesses:
            writer.write(b"GET /metrics HTTP/1.1\r\nAuthorization: Basic YTpi\r\n\r\n")
        assert (await client.get("/livez"))[0] == 200
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in guesses]
        await eventually(lambda: sum(end.done() for end in ends) == len(ends) - REFUSED_MAX // 2)
        assert not any(end.result() for end in ends if end.done() and end.exception() is None), "cut: no response"
        for end, (_, writer) in zip(ends, guesses, strict=True):
            end.cancel()
            writer.close()
