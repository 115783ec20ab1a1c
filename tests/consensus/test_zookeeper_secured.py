"""ZooKeeper with users and with TLS: no other user can read or change the tree."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_plus

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NotEmptyError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from parley.consensus.backend import Changed, Put
from parley.consensus.errors import BadConfig, Unauthorized, Unavailable
from parley.consensus.registry import backend_factory, configured_url, create_backend
from parley.consensus.zookeeper import ZookeeperBackend
from parley.consensus.zookeeper.address import parse
from parley.consensus.zookeeper.configured_address import secrets
from parley.consensus.zookeeper.connection import synchronous_client
from parley.consensus.zookeeper.tree_acls import set_acls
from tests.support.ports import free_port
from tests.support.preloaded import preloaded_command
from tests.support.stores.zookeeper import ZookeeperServers, zookeeper_servers

pytestmark = pytest.mark.system

Query = Callable[[str, str, str], str]
_JAAS = """\
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_parley="right" user_other="other"; };
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServers]:
    jaas = tmp_path_factory.mktemp("jaas") / "jaas.conf"
    jaas.write_text(_JAAS)
    settings = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    with zookeeper_servers(settings=settings, java=[f"-Djava.security.auth.login.config={jaas}"]) as servers:
        yield servers


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """Return the options of a user as a URL's query."""

    def make(user: str, password: str, auth: str) -> str:
        path = tmp_path / f"{user}-{password}"
        path.write_text(f"{password}\n")
        return f"user={user}&password-file={path}&auth={auth}"

    return make


@pytest.mark.parametrize("auth", ["digest", "sasl"])
async def test_a_locked_tree_is_for_its_user_only(servers: ZookeeperServers, query: Query, auth: str) -> None:
    url = f"{servers.url}/locked-{auth}"
    right, other = query("parley", "right", auth), query("other", "other", auth)
    async with ZookeeperBackend.from_url(f"{url}?acl=true&{right}") as client:
        session = await client.open_session(60_000)
        watch = client.watch("a/")
        await anext(watch)
        await client.txn([], [Put("a/bound", b"1", session), Put("a/lasting", b"secret")])
        event = await anext(watch)
        assert isinstance(event, Changed)
        for stranger in (url, f"{url}?{other}", f"{url}?acl=true&{other}"):
            with pytest.raises(Unauthorized):
                await ZookeeperBackend.from_url(stranger).open()
        await session.close()
    _nobody_can_touch(f"{url}?{other}", url)
    _take_the_chroot(f"{url}?{other}")
    async with ZookeeperBackend.from_url(f"{url}?acl=true&{right}") as client:
        assert [entry.key for entry in (await client.list("", limit=9)).entries] == ["a/lasting"]


def _nobody_can_touch(*urls: str) -> None:
    for url in urls:
        address = parse(url, {})
        with synchronous_client(address.endpoint) as client:
            assert not _touchable(client, address.root)


def _take_the_chroot(url: str) -> None:
    """Try to delete the tree from the node above it, which is open, then take all rights on that node from others."""
    address = parse(url, {})
    with synchronous_client(address.endpoint) as client:
        with pytest.raises(NotEmptyError):
            client.delete(address.root)
        client.set_acls(address.parents[-1], CREATOR_ALL_ACL)


def _touchable(client: KazooClient, root: str) -> list[str]:
    touched = []
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: client.get(root),
        "list": lambda: client.get_children(root),
        "create": lambda: client.create(f"{root}/new"),
        "set": lambda: client.set(f"{root}/log", b""),
        "delete": lambda: client.delete(f"{root}/identity", recursive=True),
        "acl": lambda: client.set_acls(root, OPEN_ACL_UNSAFE),
    }
    for name, call in calls.items():
        try:
            call()
        except NoAuthError:
            continue
        touched.append(name)
    return touched


async def test_a_wrong_password_is_unauthorized(servers: ZookeeperServers, query: Query) -> None:
    for auth in ("sasl", "digest"):
        url = f"{servers.url}/password-{auth}?acl=true"
        async with ZookeeperBackend.from_url(f"{url}&{query('parley', 'right', auth)}") as client:
            await client.put("a", b"")
        with pytest.raises((Unauthorized, Unavailable)):
            await ZookeeperBackend.from_url(f"{url}&connect-timeout-ms=3000&{query('parley', 'wrong', auth)}").open()


def _migrate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = preloaded_command("zookeeper-security-migration", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ})


async def test_a_tree_is_locked_and_unlocked_while_it_is_used(
    servers: ZookeeperServers, query: Query, tmp_path: Path
) -> None:
    url, right = f"{servers.url}/moved", query("parley", "right", "sasl")
    connect = servers.url.removeprefix("zookeeper://") + "/moved"
    as_user = ["--user", "parley", "--password-file", str(tmp_path / "parley-right"), "--auth", "sasl"]
    nothing = _migrate("--zookeeper.acl", "secure", "--zookeeper.connect", connect, "--enable.path.check", *as_user)
    assert nothing.returncode == 1
    assert "there is no tree at /moved/parley" in nothing.stderr
    async with (
        ZookeeperBackend.from_url(url) as before,
        ZookeeperBackend.from_url(f"{url}?acl=true&{right}") as locking,
    ):
        await before.put("a", b"open")
        refused = _migrate("--zookeeper.acl", "secure", "--zookeeper.connect", connect)
        assert refused.returncode == 1
        assert "credentials" in refused.stderr
        done = _migrate("--zookeeper.acl", "secure", "--zookeeper.connect", connect, *as_user)
        assert (done.returncode, done.stderr) == (0, "")
        await locking.put("a", b"locked")
        with pytest.raises(Unauthorized):
            await before.get("a")
        _nobody_can_touch(url)
        assert _migrate("--zookeeper.acl", "unsecure", "--zookeeper.connect", connect, *as_user).returncode == 0
        entry = await before.get("a")
        assert entry is not None
        assert entry.value == b"locked"
        await before.put("a", b"open again")


@pytest.mark.parametrize("auth", ["digest", "sasl"])
async def test_the_account_is_replaced_while_the_cluster_runs(
    servers: ZookeeperServers, query: Query, tmp_path: Path, auth: str
) -> None:
    """The steps of docs/stores.md: unlock the tree, restart the brokers one by one with the second user, lock the tree
    again.

    A broker that is restarted later still uses the connection of the previous step. Each broker reads what the other
    has written.
    """
    url = f"{servers.url}/rotated-{auth}"
    connect = f"{servers.url.removeprefix('zookeeper://')}/rotated-{auth}"
    first, second = query("parley", "right", auth), query("other", "other", auth)

    def migrate(how: str, user: str, password: str) -> None:
        as_user = ["--user", user, "--password-file", str(tmp_path / f"{user}-{password}"), "--auth", auth]
        done = _migrate("--zookeeper.acl", how, "--zookeeper.connect", connect, *as_user)
        assert (done.returncode, done.stderr) == (0, "")

    async def exchange(step: str, *clients: ZookeeperBackend) -> None:
        for number, client in enumerate(clients):
            await client.put(f"{step}/{number}", b"1")
        for client in clients:
            assert len((await client.list(f"{step}/", limit=9)).entries) == len(clients)

    async with (
        ZookeeperBackend.from_url(f"{url}?acl=true&{first}") as locked,
        ZookeeperBackend.from_url(f"{url}?{first}") as unlocked,
    ):
        await exchange("unlocking", locked, unlocked)
    async with ZookeeperBackend.from_url(f"{url}?{first}") as before:
        migrate("unsecure", "parley", "right")
        async with ZookeeperBackend.from_url(f"{url}?{second}") as changed:
            await exchange("second-user", before, changed)
            await changed.put("unlocking/0", b"changed")
    async with (
        ZookeeperBackend.from_url(f"{url}?{second}") as changed,
        ZookeeperBackend.from_url(f"{url}?acl=true&{second}") as locking,
    ):
        await exchange("locking", changed, locking)
        migrate("secure", "other", "other")
        await exchange("locked", changed, locking)
        with pytest.raises(Unauthorized):
            await ZookeeperBackend.from_url(f"{url}?{first}").open()
    _nobody_can_touch(f"{url}?{first}", url)


def test_an_unreachable_server_is_reported_once() -> None:
    away = f"127.0.0.1:{free_port()}"
    waiting = ["--zookeeper.connect", away, "--zookeeper.connection.timeout", "500"]
    failed = _migrate("--zookeeper.acl", "unsecure", *waiting)
    assert (failed.returncode, len(failed.stderr.splitlines())) == (1, 1), failed.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("acl=true", "needs credentials"),
        ("user=x", "must be used together"),
        ("user=x&password-file=/none", "cannot be read"),
        ("auth=kerberos", "digest or sasl"),
        ("ca-file=/none", "no such file"),
        ("tls=false&ca-file=/none", "tls=false contradicts ca-file: leave out tls=false, or ca-file"),
        ("acl=perhaps", "true or false"),
        ("color=red", "unknown option"),
        ("connect-timeout-ms=soon", "milliseconds"),
    ],
)
def test_invalid_options(options: str, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        ZookeeperBackend.from_url(f"zookeeper://h?{options}")


@pytest.mark.parametrize(
    "url",
    [
        "zookeeper:",
        "zookeeper://",
        "zookeeper://h:0",
        "zookeeper://h,,i",
        "zookeeper://h i",
        "zookeeper://[::1",
        "zookeeper://::1",
        "zookeeper://h/a//b",
        "zookeeper://u:p@h",
    ],
)
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(BadConfig) as caught:
        ZookeeperBackend.from_url(url)
    assert "u:p" not in str(caught.value)


def test_hosts_are_names_or_addresses() -> None:
    assert parse("zookeeper://zk_1, 10.0.0.1:1,[::1],[fe80::1%eth0]:3/x", {}).endpoint.hosts == (
        "zk_1:2181,10.0.0.1:1,[::1]:2181,[fe80::1%eth0]:3"
    )


@dataclass(frozen=True, slots=True)
class Certificates:
    """A certificate authority, and the certificates that it issued to the server and to a client, by file name."""

    directory: Path

    @classmethod
    def made(cls, directory: Path) -> Certificates:
        made = cls(directory)
        made.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority",
                     "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
        for name in ("server", "client"):
            made.openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
                         "-out", f"{name}.csr")  # fmt: skip
            (directory / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
            made.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                         "-days", "2", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
            joined = (directory / f"{name}.key").read_text() + (directory / f"{name}.pem").read_text()
            (directory / f"{name}-both.pem").write_text(joined)
        return made

    def openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.directory, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZookeeperServers, Path]]:
    made = Certificates.made(tmp_path_factory.mktemp("certificates")).directory
    settings = f"""\
secureClientPort={{port}}
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.clientAuth=need
ssl.keyStore.location={made}/server-both.pem
ssl.trustStore.location={made}/ca.pem
"""
    with zookeeper_servers(settings=settings) as servers:
        yield servers, made


async def test_tls_with_certificates_of_both_sides(tls: tuple[ZookeeperServers, Path]) -> None:
    servers, made = tls
    ours = f"cert-file={made}/client.pem&key-file={made}/client.key"
    url = f"{servers.url}/tls?ca-file={made}/ca.pem&connect-timeout-ms=10000"
    async with ZookeeperBackend.from_url(f"{url}&acl=true&{ours}") as client:
        session = await client.open_session(60_000)
        await client.put("a", b"1", session=session)
        entry = await client.get("a")
        assert entry is not None
        assert entry.value == b"1"
    with pytest.raises(Unavailable):
        await ZookeeperBackend.from_url(f"{url}").open()
    strangers = f"{servers.url}/tls?tls=true&connect-timeout-ms=5000&{ours}"
    with pytest.raises(Unavailable):
        await ZookeeperBackend.from_url(strangers).open()


async def test_kafkas_keys_equal_the_options_of_the_address(tls: tuple[ZookeeperServers, Path]) -> None:
    servers, made = tls
    config = {
        "zookeeper.connect": servers.url.removeprefix("zookeeper://") + "/kafkas",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": f"{made}/ca.pem",
        "zookeeper.ssl.keystore.location": f"{made}/client-both.pem",
        "zookeeper.set.acl": "true",
        "zookeeper.connection.timeout.ms": "10000",
    }
    async with create_backend(configured_url(config)) as client:
        await client.put("a", b"1")
    with pytest.raises(BadConfig, match="only PEM"):
        configured_url({**config, "zookeeper.ssl.keystore.type": "BCFKS"})


def kafkas(url: str, keystore: Path, truststore: Path) -> dict[str, str]:
    """As in the configuration of a Kafka broker."""
    return {
        "zookeeper.connect": url.removeprefix("zookeeper://") + "/kafkas",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": f"{truststore}",
        "zookeeper.ssl.keystore.location": f"{keystore}",
        "zookeeper.set.acl": "true",
        "zookeeper.connection.timeout.ms": "10000",
    }


@pytest.mark.parametrize("kind", ["encrypted PEM", "PKCS12", "PKCS12 of Java"])
async def test_keystores_with_passwords(tls: tuple[ZookeeperServers, Path], tmp_path: Path, kind: str) -> None:
    servers, made = tls
    keystore, truststore = tmp_path / "keystore.jks", made / "ca.pem"
    if kind == "encrypted PEM":
        run(
            "openssl", "rsa", "-aes256", "-in", f"{made}/client.key", "-passout", "pass:key pass", "-out", f"{keystore}"
        )
        keystore.write_bytes(keystore.read_bytes() + (made / "client.pem").read_bytes())
    else:
        run("openssl", "pkcs12", "-export", "-in", f"{made}/client.pem", "-inkey", f"{made}/client.key",
            "-certfile", f"{made}/ca.pem", "-passout", "pass:key pass", "-out", f"{keystore}")  # fmt: skip
    if kind == "PKCS12 of Java":
        truststore = tmp_path / "truststore"
        run("keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", f"{made}/ca.pem", "-storetype", "PKCS12",
            "-keystore", f"{truststore}", "-storepass", "trust pass")  # fmt: skip
    config = kafkas(servers.url, keystore, truststore)
    config["zookeeper.ssl.truststore.password"] = "trust pass"
    config["zookeeper.ssl.keystore.password"] = "key pass"
    url = configured_url(config)
    assert "key pass" not in unquote_plus(url)
    client = await backend_factory(config)(url)
    async with client:
        await client.put("a", b"1")
        assert (await client.watch_count()).open is not None
    assert await asyncio.to_thread(set_acls, parse(url, secrets(config)), secure=True)
    wrong = {**config, "zookeeper.ssl.keystore.password": "another"}
    with pytest.raises(BadConfig if kind != "encrypted PEM" else Unavailable):
        await (await backend_factory(wrong)(url)).open()


def test_a_keystore_that_only_java_reads_is_refused(tmp_path: Path) -> None:
    keystore = tmp_path / "old.jks"
    run("keytool", "-genkeypair", "-alias", "a", "-keyalg", "RSA", "-dname", "CN=a", "-storetype", "JKS",
        "-keystore", f"{keystore}", "-storepass", "secret", "-keypass", "secret")  # fmt: skip
    config = kafkas("zookeeper://h", keystore, keystore)
    with pytest.raises(BadConfig, match="keytool -importkeystore"):
        create_backend(configured_url(config), **secrets(config))


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
