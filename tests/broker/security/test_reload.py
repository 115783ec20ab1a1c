"""Certificates and users of a listener that change while the broker runs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.security import reload
from parley.broker.security.listener_security import ListenerSecurity
from parley.broker.security.principal import Principal, user
from parley.broker.security.reload import SecurityReload
from parley.broker.security.sasl.mechanism import LoginRefused
from parley.broker.security.session import ClientSession, anonymous
from tests.broker.network.harness import eventually
from tests.broker.security.sasl.credentials import WALL_MS, Users
from tests.support.certificates import Authority, Issued

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
AUTHORITY = Authority()


class Changing(DynamicConfig):
    """A configuration that the test changes."""

    def change(self, **settings: str) -> None:
        """Set entries for this broker: ``ssl_client_auth`` is ``listener.name.own.ssl.client.auth``."""
        entries = {f"listener.name.own.{name.replace('_', '.')}": value for name, value in settings.items()}
        self._current = self._current.with_dynamic({}, entries)
        for subscriber in self._subscribers:
            subscriber(self._current)


class Following:
    """A listener whose security follows its configuration and files."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.store = folder / "own.pem"
        self.issue("CN=broker", "a", "b")
        given = {
            "listeners": "PLAINTEXT://:0,OWN://:1",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OWN:SASL_SSL",
            "ssl.keystore.location": str(self.store),
            "ssl.truststore.certificates": AUTHORITY.pem,
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.own.plain.sasl.jaas.config": f'{MODULE} user_alice="one";',
        }
        self.config = Changing(1, BrokerConfig.from_properties(given | settings))
        (address,) = [each for each in self.config().bound if each.name == "OWN"]
        self.security = ListenerSecurity(address, self.config(), Users(), lambda: WALL_MS)

    def issue(self, name: str, *hosts: str) -> None:
        """Replace the key store, as certbot and cert-manager do: by renaming."""
        fresh = self.store.with_name("fresh.pem")
        AUTHORITY.issue(name, *hosts).write_pem(fresh)
        fresh.rename(self.store)

    @property
    def context(self) -> ssl.SSLContext:
        assert self.security.tls is not None
        return self.security.tls.context

    @property
    def lists_expire_at(self) -> float:
        assert self.security.tls is not None
        return self.security.tls.lists_expire_at

    @property
    def names(self) -> set[str]:
        assert self.security.tls is not None
        return set(self.security.tls.certificate().names)

    def knows(self, password: str) -> bool:
        assert self.security.login_rules is not None
        exchange = self.security.login_rules.mechanisms["PLAIN"].begin()
        try:
            exchange.evaluate(f"\0alice\0{password}".encode())
        except LoginRefused:
            return False
        return True


@asynccontextmanager
async def following(folder: Path, **settings: str) -> AsyncIterator[Following]:
    made = Following(folder, **settings)
    task = asyncio.create_task(SecurityReload([made.security], made.config, None).run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])
        made.security.close()


@pytest.fixture
def _looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "FILES_LOOKED_AT_S", 0.01)


@pytest.mark.usefixtures("_looked_at_often")
async def test_a_replaced_file_is_read(tmp_path: Path) -> None:
    async with following(tmp_path) as listener:
        first, rules = listener.context, listener.security.login_rules
        listener.issue("CN=broker", "a", "b", "c")
        await eventually(lambda: listener.context is not first)
        assert listener.names == {"a", "b", "c"}
        assert listener.security.login_rules is rules, "what has not changed stays"


def replace_text(path: Path, text: str) -> None:
    """Replace a file in one step: half of it would be another change."""
    fresh = path.with_name("fresh.pem")
    fresh.write_text(text)
    fresh.rename(path)


def is_let_in(server: ssl.SSLContext, client: Issued, folder: Path) -> bool:
    """Return True if a handshake with the client's certificate succeeds."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    context.check_hostname = False
    context.load_cert_chain(client.write_pem(folder / "client.pem"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (context.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    waiting = set(sides)
    while waiting:
        for side in sides:
            try:
                side.do_handshake()
                waiting.discard(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return True


@pytest.mark.usefixtures("_looked_at_often")
async def test_a_replaced_revocation_list_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alice, path = AUTHORITY.issue("alice"), tmp_path / "revoked.pem"
    path.write_text(AUTHORITY.revocation_list())
    demanded = {"listener.name.own.ssl.client.auth": "required", "ssl.crl.location": str(path)}
    async with following(tmp_path, **demanded) as listener:
        first = listener.context
        assert is_let_in(first, alice, tmp_path)
        replace_text(path, AUTHORITY.revocation_list(alice))
        await eventually(lambda: listener.context is not first)
        second = listener.context
        assert not is_let_in(second, alice, tmp_path)
        replace_text(path, "nothing")
        await eventually(
            lambda: (
                "could not change the security settings of a listener: the previous settings stay in use"
                in caplog.messages
            )
        )
        assert listener.context is second
        expired_at = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
        assert listener.lists_expire_at > expired_at.timestamp()
        replace_text(path, AUTHORITY.revocation_list(expires=expired_at))
        await eventually(lambda: listener.context is not second)
        assert listener.lists_expire_at == expired_at.timestamp()
        assert not is_let_in(listener.context, alice, tmp_path)
        (warning,) = [each for each in caplog.records if "revocation list has expired" in each.getMessage()]
        assert warning.__dict__["issuer"] == "CN=test authority"
        third = listener.context
        replace_text(path, AUTHORITY.revocation_list() + AUTHORITY.revocation_list(expires=expired_at))
        await eventually(lambda: listener.context is not third)
        assert is_let_in(listener.context, alice, tmp_path)
        assert listener.lists_expire_at > expired_at.timestamp(), "the newest list of an issuer counts"


@pytest.mark.usefixtures("_looked_at_often")
@pytest.mark.parametrize(
    ("name", "hosts", "reason"),
    [("CN=other", ("a", "b"), "ssl.allow.dn.changes"), ("CN=broker", ("a",), "ssl.allow.san.changes")],
)
async def test_a_certificate_of_another_identity_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, hosts: tuple[str, ...], reason: str
) -> None:
    async with following(tmp_path) as listener:
        first = listener.context
        listener.issue(name, *hosts)
        await eventually(lambda: bool(caplog.records))
        assert listener.context is first
        (record,) = caplog.records
        assert reason in record.__dict__["reason"]
        listener.issue("CN=broker", "b", "a")
        await eventually(lambda: listener.context is not first)
    assert len(caplog.records) == 1, "it is logged once"


BETWEEN_BROKERS = {"inter.broker.listener.name": "OWN", "sasl.mechanism.inter.broker.protocol": "PLAIN"}
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


@pytest.mark.usefixtures("_looked_at_often")
@pytest.mark.parametrize(
    ("authority", "expires", "reason"),
    [(AUTHORITY, YESTERDAY, "has expired"), (Authority("other"), None, "unable to get local issuer certificate")],
)
async def test_the_brokers_listener_keeps_a_certificate_that_brokers_accept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, authority: Authority, expires: datetime | None, reason: str
) -> None:
    def replaced(*, expires: datetime | None = expires, authority: Authority = authority) -> None:
        fresh = authority.issue("CN=broker", "a", "b", expires=expires).write_pem(tmp_path / "fresh.pem")
        fresh.rename(tmp_path / "own.pem")

    async with following(tmp_path, **BETWEEN_BROKERS) as listener:
        first = listener.context
        replaced()
        await eventually(lambda: bool(caplog.records))
        assert listener.context is first
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        own = f"ssl.keystore.location={tmp_path}/own.pem is not allowed: "
        assert record.__dict__["reason"].startswith(own), "the key in the file is named"
        assert reason in record.__dict__["reason"]
        assert "ssl.truststore.certificates" in record.__dict__["reason"]
        with pytest.raises(ConfigError, match=reason):  # a dynamic change is tried with the same method
            listener.security.read(listener.config())
        replaced(expires=None, authority=AUTHORITY)
        await eventually(lambda: listener.context is not first)
    assert len(caplog.records) == 1
    replaced()
    config = listener.config()
    with pytest.raises(ConfigError, match=reason):  # a start
        ListenerSecurity(listener.security.address, config, Users(), lambda: WALL_MS)


def test_an_expired_certificate_of_a_listener_for_clients_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    following = Following(tmp_path)
    assert caplog.messages == []
    expired = datetime.fromtimestamp(WALL_MS / 1000, UTC) - timedelta(days=1)
    AUTHORITY.issue("CN=broker", "a", "b", expires=expired).write_pem(following.store)
    following.security.read(following.config())
    assert caplog.messages == [], "only a certificate that is used is worth a line"
    following.security.replace(following.security.read(following.config()))
    (warning,) = caplog.records
    assert warning.getMessage() == "the certificate of a listener has expired: clients refuse it"
    assert warning.__dict__["expired_at"] == expired.isoformat()


@pytest.mark.usefixtures("_looked_at_often")
async def test_a_certificate_of_another_identity_can_be_allowed(tmp_path: Path) -> None:
    allowed = {"ssl.allow.dn.changes": "true", "ssl.allow.san.changes": "true"}
    async with following(tmp_path, **allowed) as listener:
        listener.issue("CN=other")
        await eventually(lambda: listener.names == set())


async def test_a_change_of_the_configuration_is_read_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with following(tmp_path) as listener:
        first = listener.context
        listener.config.change(ssl_client_auth="required")
        await eventually(lambda: listener.context is not first)
        assert listener.context.verify_mode is ssl.CERT_REQUIRED
        assert "the security settings of a listener have changed" in caplog.messages


async def test_a_mechanism_may_have_its_own_lifetime_of_sessions(tmp_path: Path) -> None:
    own = {
        "connections.max.reauth.ms": "7000",
        "listener.name.own.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.own.plain.connections.max.reauth.ms": "5000",
    }
    async with following(tmp_path, **own) as listener:
        assert listener.security.login_rules is not None
        assert listener.security.login_rules.max_reauth_ms == {"PLAIN": 5000, "SCRAM-SHA-256": 7000}


def test_the_expiry_is_that_of_the_chain(tmp_path: Path) -> None:
    expires = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=5)
    following = Following(tmp_path)
    AUTHORITY.issue("CN=broker", "a", "b", expires=expires).write_pem(following.store)
    following.security.replace(following.security.read(following.config()))
    assert following.security.tls is not None
    assert following.security.tls.expires_at == expires.timestamp()


class Builder:
    """What an operator writes."""

    def build(self, session: ClientSession) -> Principal:
        return Principal("Team", session.principal.name.partition("-")[0])


async def test_an_operators_rules_name_principals(tmp_path: Path) -> None:
    own = {"principal.builder.class": f"{__name__}.Builder"}
    session = replace(anonymous("127.0.0.1", "OWN"), principal=user("ops-alice"))
    async with following(tmp_path, **own) as listener:
        assert listener.security.identified(session).principal == Principal("Team", "ops")
    kafkas = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
    async with following(tmp_path, **{"principal.builder.class": kafkas}) as listener:
        assert listener.security.identified(session) is session


async def test_users_change_without_a_restart(tmp_path: Path) -> None:
    async with following(tmp_path) as listener:
        first = listener.context
        assert listener.knows("one")
        listener.config.change(plain_sasl_jaas_config=f'{MODULE} user_alice="two";')
        await eventually(lambda: listener.knows("two"))
        assert not listener.knows("one")
        assert listener.context is first


async def test_a_change_that_cannot_be_used_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with following(tmp_path) as listener:
        listener.config.change(plain_sasl_jaas_config=f'{MODULE} user_alice="hunter2"')
        await eventually(lambda: bool(caplog.records))
        assert listener.knows("one")
        assert "hunter2" not in str([record.__dict__ for record in caplog.records])
        listener.config.change(ssl_keystore_location=str(tmp_path / "missing.pem"))
        await eventually(lambda: len(caplog.records) == 2)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"ssl.keystore.location": "/nowhere.pem"}, "cannot be read"),
        ({"listener.name.own.ssl.client.auth": "required", "ssl.truststore.certificates": ""}, "public authority"),
        ({"principal.builder.class": "sys.exit"}, "a method build"),
        ({"listener.name.own.plain.sasl.server.callback.handler.class": "unittest.mock.call"}, "a method verify"),
        ({"ssl.principal.mapping.rules": "RULE:("}, "mapping.rules"),
        ({"sasl.enabled.mechanisms": "CRAM-MD5"}, "PLAIN"),
        ({"principal.builder.class": "com.example.Builder"}, "principal.builder.class"),
        ({"principal.builder.class": "builtins.dict"}, "a method build"),
        ({"listener.name.own.plain.sasl.jaas.config": f'{MODULE} a="hunter2"'}, "JAAS"),
    ],
)
def test_a_listener_that_cannot_be_secured_is_not_opened(tmp_path: Path, entry: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        Following(tmp_path, **entry)
    assert "hunter2" not in str(refused.value)
