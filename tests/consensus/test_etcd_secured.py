"""etcd with users, set up as in docs/stores.md, and with TLS: no other user can read or change the store."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from parley.consensus.backend import Changed, Put
from parley.consensus.errors import Unauthorized, Unavailable, WrongStore
from parley.consensus.etcd import EtcdBackend
from tests.support.stores.etcd import EtcdServers, etcd_servers
from tests.support.stores.servers import free_ports

pytestmark = pytest.mark.system

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stores.md"
PREFIX = "/parley/production"


@dataclass(frozen=True, slots=True)
class Users:
    """An etcd server with the users ``root``, ``parley`` (may use ``PREFIX``), ``reader`` (may read it) and ``other``
    (may use another prefix).

    The password of each user is its name.
    """

    servers: EtcdServers

    def url(self, user: str, prefix: str = PREFIX, password: str | None = None) -> str:
        path = self.servers.directory / f"password-{user}-{password}"
        path.write_text(f"{password or user}\n")
        return f"{self.servers.url}{prefix}?user={user}&password-file={path}"

    def etcdctl(self, *arguments: str) -> str:
        return self.servers.etcdctl("--user=root:root", *arguments)


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    with etcd_servers() as servers:
        for user, permission, prefix in (("reader", "read", f"{PREFIX}/"), ("other", "readwrite", "/other/")):
            servers.etcdctl("role", "add", user)
            servers.etcdctl("role", "grant-permission", user, permission, prefix, "--prefix=true")
            servers.etcdctl("user", "add", f"{user}:{user}")
            servers.etcdctl("user", "grant-role", user, user)
        for command in _documented():
            servers.etcdctl(*command)
        yield Users(servers)


def _documented() -> Iterator[list[str]]:
    """Yield the commands of docs/stores.md, with the passwords that etcd would ask for."""
    for line in re.findall(r"^etcdctl (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        words = line.split()
        yield [*words[:2], f"{words[2]}:{words[2]}"] if words[:2] == ["user", "add"] else words


async def test_a_user_with_a_role_for_the_prefix_is_enough(users: Users) -> None:
    async with EtcdBackend.from_url(users.url("parley")) as client, EtcdBackend.from_url(users.url("parley")) as other:
        session = await client.open_session(10_000)
        watch = other.watch("")
        await anext(watch)
        await client.txn([], [Put("bound", b"1", session)])
        assert isinstance(await anext(watch), Changed)
        assert await other.delete("bound")
        await session.close()


@pytest.mark.parametrize(
    ("user", "password"), [("reader", None), ("other", None), ("parley", "wrong"), ("nobody", None)]
)
async def test_users_without_the_role_are_refused_at_once(users: Users, user: str, password: str | None) -> None:
    async with EtcdBackend.from_url(users.url("parley")):
        pass
    with pytest.raises(Unauthorized) as caught:
        await EtcdBackend.from_url(users.url(user, password=password)).open()
    assert "wrong" not in str(caught.value)


async def test_a_client_without_a_user_is_refused(users: Users) -> None:
    with pytest.raises(Unauthorized):
        await EtcdBackend.from_url(f"{users.servers.url}{PREFIX}").open()


async def test_expired_tokens_are_replaced(users: Users) -> None:
    async with EtcdBackend.from_url(users.url("parley")) as client:
        watch = client.watch("t/")
        await anext(watch)
        users.etcdctl(
            "user", "add", "another:x"
        )  # creates a new revision of the users, so all tokens belong to an old one
        await client.put("t/a", b"1")
        assert isinstance(await anext(watch), Changed)
        await asyncio.to_thread(users.servers.restart)  # etcd forgets its tokens
        entry = None
        while entry is None:
            try:
                entry = await client.get("t/a")
            except Unavailable:
                await asyncio.sleep(0.05)
        await client.put("t/b", b"1")
        assert isinstance(await anext(watch), Changed)


async def test_a_permission_that_is_taken_away_ends_writes_and_watches(users: Users) -> None:
    users.etcdctl("role", "grant-permission", "parley", "readwrite", "/taken/", "--prefix=true")
    async with EtcdBackend.from_url(users.url("parley", "/taken")) as client:
        watch = client.watch("")
        await anext(watch)
        users.etcdctl("role", "revoke-permission", "parley", "/taken/", "--prefix=true")
        with pytest.raises(Unauthorized):
            await client.put("a", b"")
        with pytest.raises(Unauthorized):
            await client.get("a")
        again = client.watch("")
        with pytest.raises(Unauthorized):
            await anext(again)


async def test_the_account_is_replaced_while_the_cluster_runs(users: Users) -> None:
    """The steps of docs/security.md: create a second user of the role, restart the brokers one by one, delete the first
    user."""
    users.etcdctl("role", "add", "rotated")
    users.etcdctl("role", "grant-permission", "rotated", "readwrite", "/rotated/", "--prefix=true")
    for user in ("first", "second"):
        users.etcdctl("user", "add", f"{user}:{user}")
        users.etcdctl("user", "grant-role", user, "rotated")
        if user == "first":
            waits = EtcdBackend.from_url(users.url("first", "/rotated"))  # the broker that is restarted last
            await waits.open()
            watch = waits.watch("")
            await anext(watch)
            await waits.put("before", b"1")
            assert isinstance(await anext(watch), Changed)
    async with EtcdBackend.from_url(users.url("second", "/rotated")) as restarted:
        session = await restarted.open_session(600_000)
        await restarted.txn([], [Put("bound", b"1", session)])
        assert isinstance(await anext(watch), Changed)
        await waits.put("from-the-first", b"1")
        assert await restarted.get("from-the-first")
        await waits.close()
        await asyncio.to_thread(users.etcdctl, "user", "delete", "first")
        await restarted.put("after", b"1")
        assert await restarted.get("bound"), "its session lives on"
        with pytest.raises(Unauthorized):
            await EtcdBackend.from_url(users.url("first", "/rotated")).open()
        await session.close()


@dataclass(frozen=True, slots=True)
class Authority:
    """Certificates for a test, created by openssl."""

    folder: Path

    def issue(self, name: str) -> tuple[Path, Path]:
        """Create a certificate with this name for 127.0.0.1, and its key."""
        cert, key, request = (self.folder / f"{name}.{kind}" for kind in ("crt", "key", "csr"))
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        make = [
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            f"/CN={name}",
            "-keyout",
            str(key),
            "-out",
            str(request),
        ]
        sign = ["x509", "-req", "-in", str(request), "-out", str(cert), "-days", "2", "-extfile", str(extensions)]
        _openssl(*make, "-keyout", str(key), "-out", str(request))
        _openssl(*sign, "-CA", str(self.folder / "ca.crt"), "-CAkey", str(self.folder / "ca.key"), "-CAcreateserial")
        return cert, key

    @classmethod
    def make(cls, folder: Path) -> Authority:
        folder.mkdir(parents=True)
        names = ["-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt")]
        _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ca", "-days", "2", *names)
        return cls(folder)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("etcd") / "authority")


@pytest.fixture(scope="module")
def tls_servers(authority: Authority) -> Iterator[EtcdServers]:
    cert, key = authority.issue("server")
    (port,) = free_ports(1)
    options = [
        f"--cert-file={cert}",
        f"--key-file={key}",
        "--client-cert-auth",
        f"--trusted-ca-file={authority.folder / 'ca.crt'}",
        f"--listen-metrics-urls=http://127.0.0.1:{port}",
    ]
    with etcd_servers(options=options, scheme="https") as servers:
        yield servers


async def test_tls_with_a_client_s_certificate(
    tls_servers: EtcdServers, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = authority.folder / "ca.crt"
    cert, key = authority.issue("parley")
    good = f"{tls_servers.url}/tls?ca-file={ca}&cert-file={cert}&key-file={key}"
    async with EtcdBackend.from_url(good) as client:
        await client.put("a", b"1")
        identity = client.identity
    by_system = f"{tls_servers.url}/tls?tls=true&cert-file={cert}&key-file={key}"
    stranger_cert, stranger_key = Authority.make(tmp_path / "strangers").issue("stranger")
    for bad in (
        by_system,
        f"{tls_servers.url}/tls?ca-file={ca}&cert-file={stranger_cert}&key-file={stranger_key}",
    ):
        with pytest.raises(Unavailable):
            await EtcdBackend.from_url(bad).open()
    with pytest.raises(WrongStore):
        await EtcdBackend.from_url(good).open(expect_identity="another")
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))  # the authority of the operating system
    for url in (good, by_system):
        async with EtcdBackend.from_url(url) as client:
            assert client.identity == identity


async def test_a_certificate_s_name_is_the_user(tls_servers: EtcdServers, authority: Authority) -> None:
    ca = authority.folder / "ca.crt"
    certificates = {name: authority.issue(name) for name in ("root", "parley", "somebody")}

    def etcdctl(*arguments: str) -> None:
        cert, key = certificates["root"]
        tls_servers.etcdctl(f"--cacert={ca}", f"--cert={cert}", f"--key={key}", *arguments)

    def url(name: str) -> str:
        cert, key = certificates[name]
        return f"{tls_servers.url}/named?ca-file={ca}&cert-file={cert}&key-file={key}"

    etcdctl("role", "add", "parley")
    etcdctl("role", "grant-permission", "parley", "readwrite", "/named/", "--prefix=true")
    for name in certificates:
        etcdctl("user", "add", f"{name}:{name}")
    etcdctl("user", "grant-role", "root", "root")
    etcdctl("user", "grant-role", "parley", "parley")
    etcdctl("auth", "enable")
    async with EtcdBackend.from_url(url("parley")) as client:
        watch = client.watch("")
        await anext(watch)
        session = await client.open_session(10_000)
        await client.put("a", b"1", session=session)
        assert isinstance(await anext(watch), Changed)
    with pytest.raises(Unauthorized):
        await EtcdBackend.from_url(url("somebody")).open()
