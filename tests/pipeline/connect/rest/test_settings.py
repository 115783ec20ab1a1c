"""How a worker serves its REST API: addresses, TLS, the advertised URL, admin endpoints."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse

from parley.pipeline.connect.distributed.settings import DISTRIBUTED, signing_rules
from parley.pipeline.connect.errors import ConfigError, ConnectError
from parley.pipeline.connect.rest.endpoints import ADMIN
from parley.pipeline.connect.rest.settings import RestSettings
from parley.pipeline.connect.worker_config import WorkerConfig
from parley.pipeline.service.errors import ServiceError
from parley.pipeline.service.server import Listener, RestServer
from tests.pipeline.connect.rest.test_login import jaas_file
from tests.pipeline.connect.workers import settings
from tests.support.certificates import Authority
from tests.support.http import HTTP_TIMEOUT_S

GROUP = {"group.id": "g", "config.storage.topic": "c", "offset.storage.topic": "o", "status.storage.topic": "s"}
EXTENSION = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
AUTHORITY = Authority()
APP = PlainTextResponse("served")


def worker_config(given: dict[str, str]) -> WorkerConfig:
    return WorkerConfig.parse(settings("a:1") | GROUP | given, DISTRIBUTED)


def tls(folder: Path, prefix: str = "listeners.https.", **more: str) -> dict[str, str]:
    """Return the configuration keys of a worker with a certificate of the authority."""
    own = {
        "ssl.keystore.location": str(AUTHORITY.issue("worker", "127.0.0.1").write_pem(folder / "worker.pem")),
        "ssl.truststore.location": str(AUTHORITY.write(folder / "trust.pem")),
    }
    return {f"{prefix}{key}": value for key, value in (own | more).items()}


def client(**more: object) -> httpx.AsyncClient:
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    if "identity" in more:
        context.load_cert_chain(str(more["identity"]))
    return httpx.AsyncClient(verify=context, timeout=HTTP_TIMEOUT_S)


async def test_http_and_https_beside_each_other(tmp_path: Path) -> None:
    rest = RestSettings.of(worker_config({"listeners": "http://127.0.0.1:0,https://127.0.0.1:0", **tls(tmp_path)}))
    async with RestServer(rest.listeners, rest.tls) as server, client() as asking:
        server.serve(APP)
        plain, secured = server.addresses
        assert rest.advertised_url(server.addresses) == f"http://127.0.0.1:{plain.port}/"
        assert (await asking.get(f"http://127.0.0.1:{plain.port}/")).text == "served"
        assert (await asking.get(f"https://127.0.0.1:{secured.port}/")).text == "served"
        with pytest.raises(httpx.TransportError):
            await asking.get(f"http://127.0.0.1:{secured.port}/")


async def test_only_clients_with_a_certificate(tmp_path: Path) -> None:
    given = tls(tmp_path, **{"ssl.client.auth": "required"})
    rest = RestSettings.of(worker_config({"listeners": "https://127.0.0.1:0", **given}))
    foreign = Authority("foreign").issue("alice").write_pem(tmp_path / "foreign.pem")
    known = AUTHORITY.issue("alice").write_pem(tmp_path / "alice.pem")
    async with RestServer(rest.listeners, rest.tls) as server:
        server.serve(APP)
        url = rest.advertised_url(server.addresses)
        async with client() as stranger, client(identity=foreign) as of_others, client(identity=known) as alice:
            assert (await alice.get(url)).text == "served"
            for refused in (stranger, of_others):
                with pytest.raises(httpx.TransportError):
                    await refused.get(url)
        async with httpx.AsyncClient(verify=rest.client_tls or False, timeout=HTTP_TIMEOUT_S) as worker:
            assert (await worker.get(url)).text == "served", "workers present their own certificate"


async def test_a_renewed_certificate_needs_no_restart(tmp_path: Path) -> None:
    rest = RestSettings.of(worker_config({"listeners": "https://127.0.0.1:0", **tls(tmp_path)}))
    async with RestServer(rest.listeners, rest.tls) as server:
        server.serve(APP)
        url = rest.advertised_url(server.addresses)
        other = Authority("other")
        other.issue("worker", "127.0.0.1").write_pem(tmp_path / "worker.pem")
        async with client() as old:
            with pytest.raises(httpx.TransportError):
                await old.get(url)
        other.write(tmp_path / "trust.pem")
        async with httpx.AsyncClient(verify=rest.client_tls or False, timeout=HTTP_TIMEOUT_S) as worker:
            assert (await worker.get(url)).text == "served", "the trust store of requests to workers is followed, too"
        (tmp_path / "worker.pem").write_text("nothing")
        async with httpx.AsyncClient(verify=rest.client_tls or False, timeout=HTTP_TIMEOUT_S) as worker:
            assert (await worker.get(url)).text == "served", "the old certificate stays"


def test_keys_with_the_prefix_count_alone(tmp_path: Path) -> None:
    """As in Kafka: if any key has the prefix, the worker's own ``ssl.*`` keys are ignored."""
    listeners = {"listeners": "https://127.0.0.1:0"}
    assert RestSettings.of(worker_config({**listeners, **tls(tmp_path, "")})).tls is not None
    with pytest.raises(ServiceError, match=r"listeners.https.ssl.*keystore"):
        RestSettings.of(worker_config({**listeners, **tls(tmp_path, ""), "listeners.https.ssl.client.auth": "none"}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"listeners.https.ssl.client.auth": "always"}, "expected none, requested or required"),
        ({"listeners.https.ssl.keystore.location": "/nowhere"}, "cannot be read"),
        ({}, "needs ssl.keystore.location"),
    ],
)
def test_tls_that_cannot_be_served(given: dict[str, str], message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        RestSettings.of(worker_config({"listeners": "https://127.0.0.1:0", **given}))


def test_any_authority_is_no_client_auth(tmp_path: Path) -> None:
    given = tls(tmp_path, **{"ssl.client.auth": "required"})
    del given["listeners.https.ssl.truststore.location"]
    with pytest.raises(ServiceError, match=r"needs ssl\.truststore"):
        RestSettings.of(worker_config({"listeners": "https://127.0.0.1:0", **given}))


BOTH = [Listener("127.0.0.1", 1), Listener("::1", 2, True)]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "http://127.0.0.1:1/"),
        ({"rest.advertised.listener": "HTTPS"}, "https://[::1]:2/"),
        ({"rest.advertised.listener": "https", "rest.advertised.host.name": "proxy"}, "https://proxy:2/"),
        ({"rest.advertised.port": "443"}, "http://127.0.0.1:443/"),
    ],
)
def test_the_advertised_url_follows_the_settings(tmp_path: Path, given: dict[str, str], url: str) -> None:
    listeners = "http://127.0.0.1:0,https://[::1]:0"
    assert (
        RestSettings.of(worker_config({"listeners": listeners, **tls(tmp_path), **given})).advertised_url(BOTH) == url
    )


def test_a_proxy_that_ends_tls(tmp_path: Path) -> None:
    told = {"rest.advertised.listener": "https", **tls(tmp_path)}
    with pytest.raises(ConnectError, match="no listener has this protocol"):
        RestSettings.of(worker_config(told)).advertised_url(BOTH[:1])
    told |= {"rest.advertised.host.name": "proxy", "rest.advertised.port": "443"}
    assert RestSettings.of(worker_config(told)).advertised_url(BOTH[:1]) == "https://proxy:443/"


@pytest.mark.parametrize(
    ("given", "here", "apart"),
    [
        ({}, True, []),
        ({"admin.listeners": ""}, False, []),
        ({"admin.listeners": "http://127.0.0.1:9000"}, False, [Listener("127.0.0.1", 9000)]),
    ],
)
def test_where_admin_endpoints_are_served(given: dict[str, str], here: bool, apart: list[Listener]) -> None:
    rest = RestSettings.of(worker_config(given))
    assert (ADMIN in rest.routers) is here
    assert rest.admin == apart


def test_a_login_needs_signed_requests_among_workers(tmp_path: Path) -> None:
    login = {"rest.extension.classes": EXTENSION, "java.security.auth.login.config": str(jaas_file(tmp_path))}
    assert RestSettings.of(worker_config(login)).login is not None
    with pytest.raises(ConnectError, match=r"needs connect\.protocol=sessioned"):
        RestSettings.of(worker_config({**login, "connect.protocol": "compatible"}))


def test_how_workers_sign() -> None:
    rules = signing_rules(worker_config({"inter.worker.key.size": "512", "inter.worker.key.ttl.ms": "5"}))
    assert (rules.key_bits, rules.algorithm, rules.accepted, rules.key_ttl_ms) == (
        512,
        "HmacSHA256",
        ("HmacSHA256",),
        5,
    )
    other = {"inter.worker.signature.algorithm": "HmacSHA512"}
    with pytest.raises(ConnectError, match=r"verification\.algorithms must contain HmacSHA512"):
        signing_rules(worker_config(other))
    assert signing_rules(worker_config({**other, "inter.worker.verification.algorithms": "HmacSHA256,HmacSHA512"}))
    for key, value in (("verification.algorithms", ""), ("verification.algorithms", "HmacMD5"), ("key.size", "8")):
        with pytest.raises(ConfigError, match=key):
            worker_config({f"inter.worker.{key}": value})
