"""Logins with GSSAPI, a real KDC, and real clients: Apache Kafka's tools, librdkafka with Cyrus SASL, kafka-python,
aiokafka, our own."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaConsumer, KafkaProducer

from parley import Broker
from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.security.principal import user
from parley.broker.security.sasl.mechanism import Exchange, Identity, LoginRefused, Mechanism, MechanismSetup, Reply
from parley.broker.security.sasl.plugins import maker
from parley.protocol.client import Client, NotAuthenticated
from parley.protocol.errors import ErrorCode
from parley.protocol.security.client_security import ClientSecurity, client_security
from parley.protocol.security.jaas import single_login_module
from parley.protocol.security.kerberos import NO_LAYER, GssapiLogin, KerberosOptions, gssapi_library
from parley.protocol.security.librdkafka import librdkafka_settings
from tests.broker.security.sasl.credentials import WALL_MS, Users
from tests.broker.security.secured_brokers import SecuredBrokers, bootstrap
from tests.broker.test_server import create, end_offset, produce
from tests.support.certificates import Authority
from tests.support.kafka import KAFKA_3, KAFKA_4, JavaFailed, Kafka4, run_java
from tests.support.kdc import REALM, Kdc, keytab_line, krb5_line, running_kdc
from tests.support.preloaded import preloaded_command

BROKER = "kafka/localhost"
TOPICS = "org.apache.kafka.tools.TopicCommand"
RULES = r"RULE:[2:$1-$2@$0](.*-admin@PARLEY\.TEST)s/-.*//U,RULE:[1:$1](mallory)s/.*/x@y/,DEFAULT"
SESSION_MS = 3_600_000
WAIT_SECONDS = 60


@dataclass(frozen=True)
class Realm:
    """A KDC, and keytabs of the broker and of its clients."""

    kdc: Kdc
    broker: str
    alice: str
    admin: str
    mallory: str

    @property
    def broker_line(self) -> str:
        return keytab_line(f"{BROKER}@{REALM}", self.broker)


@dataclass(frozen=True)
class Kerberized:
    """A broker with two Kerberos listeners. Only ``User:alice`` and ``User:BOB`` have permissions."""

    broker: Broker
    realm: Realm
    trust: str

    def address(self, listener: str) -> str:
        (found,) = [each for each in self.broker.server.endpoints if each.listener == listener]
        return f"localhost:{found.port}"

    def properties(self, listener: str, line: str) -> dict[str, str]:
        given = {
            "security.protocol": listener,
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": line,
        }
        return given | (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.trust} if "SSL" in listener else {}
        )

    def security(self, line: str, listener: str = "SASL_PLAINTEXT") -> ClientSecurity:
        return client_security(self.properties(listener, line))

    async def logs_in(self, security: ClientSecurity, listener: str = "SASL_PLAINTEXT") -> None:
        """Raises NotAuthenticated if the broker refuses."""
        async with Client(self.address(listener), security=security) as client:
            assert (await client.metadata([])).brokers


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as kdc:
        kdc.add(BROKER, "alice", "bob/admin", "mallory")
        yield Realm(kdc, kdc.keytab(BROKER), kdc.keytab("alice"), kdc.keytab("bob/admin"), kdc.keytab("mallory"))


@pytest.fixture(scope="module")
def kerberized(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberized]:
    folder = tmp_path_factory.mktemp("kerberized")
    authority = Authority()
    trust = authority.write(folder / "trust.pem")
    key_store = authority.issue("CN=broker", "localhost", "127.0.0.1").write_pem(folder / "broker.pem")
    with Broker(
        {
            "listeners": ",".join(f"{name}://localhost:0" for name in ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL")),
            "ssl.keystore.location": str(key_store),
            "ssl.truststore.location": str(trust),
            "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": realm.broker_line,
            "listener.name.sasl_ssl.gssapi.sasl.jaas.config": realm.broker_line,
            "listener.name.sasl_ssl.gssapi.connections.max.reauth.ms": str(SESSION_MS),
            "sasl.kerberos.principal.to.local.rules": RULES,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:alice;User:BOB;User:ANONYMOUS",
            "connection.failed.authentication.delay.ms": "5",
        }
    ) as broker:
        yield Kerberized(broker, realm, str(trust))


# --- Real clients ---


def java(kerberized: Kerberized, path: Path, listener: str, line: str) -> tuple[str, ...]:
    """Return the options of Apache Kafka's tools for a client with this JAAS entry."""
    given = kerberized.properties(listener, line)
    path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    return ("--bootstrap-server", kerberized.address(listener), "--command-config", str(path))


@pytest.mark.parametrize(("version", "listener"), [(KAFKA_4, "SASL_SSL"), (KAFKA_3, "SASL_PLAINTEXT")])
def test_apache_kafkas_tools(
    kerberized: Kerberized, new_name: Callable[..., str], tmp_path: Path, version: str, listener: str
) -> None:
    line = keytab_line(f"bob/admin@{REALM}", kerberized.realm.admin)
    options = java(kerberized, tmp_path / "client.properties", listener, line)
    topic = new_name()
    assert topic in run_java(TOPICS, *options, "--create", "--topic", topic, version=version)


def test_apache_kafka_learns_that_its_principal_has_no_name_here(kerberized: Kerberized, tmp_path: Path) -> None:
    line = keytab_line(f"mallory@{REALM}", kerberized.realm.mallory)
    options = java(kerberized, tmp_path / "client.properties", "SASL_PLAINTEXT", line)
    with pytest.raises(JavaFailed, match=r"SaslAuthenticationException.* invalid credentials"):
        run_java(TOPICS, *options, "--list")


def kcat(kerberized: Kerberized, *words: str, stdin: str = "") -> str:
    cache = kerberized.realm.kdc.kinit("alice", kerberized.realm.alice)
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.kinit.cmd": "true",  # the tickets are there
    }
    options = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
    command = ["env", f"KRB5CCNAME={cache}", "kcat", "-b", kerberized.address("SASL_PLAINTEXT"), "-m", "60", *options]
    done = subprocess.run([*command, *words], input=stdin, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_librdkafka_with_cyrus_sasl(kerberized: Kerberized, new_name: Callable[..., str]) -> None:
    topic = new_name()
    kcat(kerberized, "-P", "-t", topic, stdin="one\ntwo\n")
    assert kcat(kerberized, "-C", "-t", topic, "-e", "-q") == "one\ntwo\n"


@pytest.fixture
def tickets(kerberized: Kerberized, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the settings of a Python client that uses the tickets of ``kinit``."""
    monkeypatch.setenv("KRB5CCNAME", kerberized.realm.kdc.kinit("alice", kerberized.realm.alice))
    return {
        "bootstrap_servers": kerberized.address("SASL_PLAINTEXT"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
    }


def test_kafka_python(tickets: dict[str, str], new_name: Callable[..., str]) -> None:
    topic, settings = new_name(), {**tickets, "sasl_kerberos_service_name": "kafka"}
    producer = KafkaProducer(**settings)
    producer.send(topic, b"one").get(WAIT_SECONDS)
    producer.close()
    consumer = KafkaConsumer(topic, **settings, auto_offset_reset="earliest")
    (records,) = consumer.poll(WAIT_SECONDS * 1000).values()
    consumer.close()
    assert [record.value for record in records] == [b"one"]


async def test_aiokafka(tickets: dict[str, str], new_name: Callable[..., str]) -> None:
    topic = new_name()
    async with AIOKafkaProducer(**tickets) as producer:
        await producer.send_and_wait(topic, b"one")
    async with AIOKafkaConsumer(topic, **tickets, auto_offset_reset="earliest") as consumer:
        assert (await consumer.getone()).value == b"one"


def test_the_parley_command(kerberized: Kerberized, new_name: Callable[..., str], tmp_path: Path) -> None:
    line = keytab_line("alice", kerberized.realm.alice)
    options = java(kerberized, tmp_path / "client.properties", "SASL_SSL", line)
    topic = new_name()
    command = preloaded_command("topics", *options, "--create", "--topic", topic)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_command_on_librdkafka_says_that_it_cannot(kerberized: Kerberized) -> None:
    properties = kerberized.properties("SASL_PLAINTEXT", keytab_line("alice", kerberized.realm.alice))
    with pytest.raises(ValueError, match="librdkafka of confluent-kafka cannot log in with GSSAPI"):
        librdkafka_settings(properties)


async def test_our_client_logs_in_to_apache_kafka(realm: Realm, tmp_path: Path) -> None:
    settings = {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.bare.gssapi.sasl.jaas.config": realm.broker_line,
    }
    kafka = Kafka4(tmp_path, settings, {"BARE": "SASL_PLAINTEXT"})
    try:
        properties = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": keytab_line("alice", realm.alice),
        }
        address = kafka.listeners["BARE"].replace("127.0.0.1", "localhost")
        async with Client(address, security=client_security(properties)) as client:
            assert (await client.metadata([])).brokers
    finally:
        kafka.close()


# --- Our client ---


async def test_the_short_name_has_the_rights(kerberized: Kerberized, new_name: Callable[..., str]) -> None:
    kerberized.realm.kdc.add("carol")
    carol = kerberized.realm.kdc.keytab("carol")
    topic = new_name()
    async with Client(
        kerberized.address("SASL_SSL"), security=kerberized.security(keytab_line("carol", carol), "SASL_SSL")
    ) as client:
        with pytest.raises(AssertionError, match=f"assert {ErrorCode.TOPIC_AUTHORIZATION_FAILED:d} =="):
            await create(client, topic)
    line = keytab_line("bob/admin", kerberized.realm.admin)
    async with Client(kerberized.address("SASL_SSL"), security=kerberized.security(line, "SASL_SSL")) as client:
        await create(client, topic)


async def test_tickets_of_a_cache(kerberized: Kerberized) -> None:
    realm = kerberized.realm
    cache = realm.kdc.kinit("alice", realm.alice)
    await kerberized.logs_in(kerberized.security(krb5_line({"useTicketCache": "true", "ticketCache": cache})))


async def test_the_keytab_is_used_if_there_is_no_ticket_in_the_cache(kerberized: Kerberized, tmp_path: Path) -> None:
    options = {"useTicketCache": "true", "ticketCache": str(tmp_path / "none")}
    with pytest.raises(NotAuthenticated, match="cannot get a Kerberos ticket for kafka@localhost"):
        await kerberized.logs_in(kerberized.security(krb5_line(options)))
    options |= {"useKeyTab": "true", "keyTab": kerberized.realm.alice, "principal": "alice"}
    await kerberized.logs_in(kerberized.security(krb5_line(options)))


async def test_a_broker_that_the_kdc_does_not_know(kerberized: Kerberized) -> None:
    properties = kerberized.properties("SASL_PLAINTEXT", keytab_line("alice", kerberized.realm.alice))
    security = client_security(properties | {"sasl.kerberos.service.name": "other"})
    with pytest.raises(NotAuthenticated, match=r"cannot get a Kerberos ticket for other@localhost.*not found"):
        await kerberized.logs_in(security)


async def test_a_session_is_renewed_on_the_same_connection(kerberized: Kerberized) -> None:
    security = kerberized.security(keytab_line("alice", kerberized.realm.alice), "SASL_SSL")
    async with Client(kerberized.address("SASL_SSL"), security=security) as client:
        first = await client._link(None)
        first._login_due = began = asyncio.get_running_loop().time()
        assert (await client.metadata([])).brokers
        assert first._login_due > began + SESSION_MS / 2000
        assert await client._link(None) is first


async def test_new_keys_of_a_broker_need_no_restart(realm: Realm, tmp_path: Path) -> None:
    """Clients with a ticket for the old keys are refused once, and then get a new ticket."""
    name = "rotated/localhost"
    realm.kdc.add(name)
    keytab = realm.kdc.keytab(name)
    with Broker(
        {
            "listeners": "PLAINTEXT://localhost:0,SASL_PLAINTEXT://localhost:0",
            "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": keytab_line(f"{name}@{REALM}", keytab),
            "connection.failed.authentication.delay.ms": "5",
        }
    ) as broker:
        kerberized = Kerberized(broker, realm, "")
        properties = kerberized.properties("SASL_PLAINTEXT", keytab_line("alice", realm.alice))
        security = client_security(properties | {"sasl.kerberos.service.name": "rotated"})
        await kerberized.logs_in(security)
        realm.kdc.keytab(name)
        await kerberized.logs_in(security)  # the keytab has the old keys, too
        realm.kdc.keytab(name, renew=True)
        with pytest.raises(NotAuthenticated, match="rejects the login"):
            await kerberized.logs_in(security)
        await kerberized.logs_in(security)


async def test_failing_logins_do_not_fill_the_memory(kerberized: Kerberized) -> None:
    security = kerberized.security(keytab_line("mallory", kerberized.realm.mallory))
    caches = set()
    for _ in range(5):
        with pytest.raises(NotAuthenticated, match="rejects the login"):
            await kerberized.logs_in(security)
        assert isinstance(security.login, GssapiLogin)
        caches.add(security.login._cache)
    assert len(caches) == 1


# --- Between brokers ---


async def test_brokers_log_in_to_each_other(realm: Realm, tmp_path: Path) -> None:
    secured = SecuredBrokers(tmp_path)
    kerberos = {
        "listeners": "SECURE://localhost:0",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.mechanism.inter.broker.protocol": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.secure.gssapi.sasl.jaas.config": realm.broker_line,
    }
    settings = [secured.settings(number, "SASL_PLAINTEXT") | kerberos for number in (1, 2)]
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": keytab_line("alice", realm.alice),
    }
    async with (
        secured.running(*settings) as servers,
        Client(bootstrap(servers[1]), security=client_security(properties)) as client,
    ):
        await create(client, "t", replicas=2)
        leader = await client.leader("t", 0)
        assert await produce(client, "t", [b"a", b"b"], node=leader) == 0
        assert await end_offset(client, "t", node=leader) == 2


# --- A hostile client ---


def mechanism(realm: Realm, line: str = "", **properties: str) -> Mechanism:
    """Return the GSSAPI mechanism as a listener creates it."""
    config = BrokerConfig.from_properties({key.replace("_", "."): value for key, value in properties.items()})
    module = single_login_module(line or realm.broker_line)
    setup = MechanismSetup(
        "GSSAPI", config, Users(), lambda: WALL_MS, options=module.options, login_module=module.class_name
    )
    return maker("GSSAPI")(setup)


async def evaluated(exchange: Exchange, token: bytes) -> Reply:
    reply = exchange.evaluate(token)
    assert inspect.isawaitable(reply)
    return await reply


@pytest.fixture(scope="module")
def alice(realm: Realm) -> GssapiLogin:
    return GssapiLogin(KerberosOptions.of(single_login_module(keytab_line("alice", realm.alice)).options), "kafka")


async def test_who_logs_in(realm: Realm, alice: GssapiLogin) -> None:
    server, client = mechanism(realm).begin(), await alice.exchange("localhost")
    token = next(client)
    while (reply := await evaluated(server, token)).identity is None:
        token = client.send(reply.token)
    assert reply.identity == Identity(user("alice"))
    assert server.user == f"alice@{REALM}"


async def test_a_token_is_accepted_once(realm: Realm, alice: GssapiLogin) -> None:
    listener, client = mechanism(realm), await alice.exchange("localhost")
    token = next(client)
    await evaluated(listener.begin(), token)
    with pytest.raises(LoginRefused, match="replay"):
        await evaluated(listener.begin(), token)


def context(alice: GssapiLogin) -> Any:
    """Return a client security context that can send invalid messages."""
    return alice._begin("localhost")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (NO_LAYER + b"bob", None),  # Kafka ignores the authorization id, too
        (b"\x02\x00\x10\x00", "a security layer that was not offered"),
        (b"\x04\x00\x10\x00", "a security layer that was not offered"),
        (b"\x00\x00\x00\x00", "a security layer that was not offered"),
        (b"\x01", "a security layer that was not offered"),
        (b"", "a security layer that was not offered"),
    ],
)
async def test_the_last_message(realm: Realm, alice: GssapiLogin, message: bytes, reason: str | None) -> None:
    server, (made, token) = mechanism(realm).begin(), context(alice)
    reply = await evaluated(server, token)
    assert not made.step(reply.token)
    offer = await evaluated(server, b"")
    assert made.unwrap(offer.token).message == NO_LAYER
    final = evaluated(server, made.wrap(message, True).message)
    if reason is None:
        assert (await final).identity == Identity(user("alice"))
    else:
        with pytest.raises(LoginRefused, match=reason):
            await final


@pytest.mark.parametrize("last", [NO_LAYER, b"", b"\x60" * 100])
async def test_the_last_message_must_be_signed(realm: Realm, alice: GssapiLogin, last: bytes) -> None:
    server, (_, token) = mechanism(realm).begin(), context(alice)
    await evaluated(server, token)
    await evaluated(server, b"")
    with pytest.raises(LoginRefused):
        await evaluated(server, last)


async def test_no_token_may_follow_those_of_kerberos(realm: Realm, alice: GssapiLogin) -> None:
    server, (_, token) = mechanism(realm).begin(), context(alice)
    await evaluated(server, token)
    with pytest.raises(LoginRefused, match="the client sent a Kerberos token after the last token"):
        await evaluated(server, token)


async def test_a_ticket_for_another_service(realm: Realm) -> None:
    realm.kdc.add("other/localhost")
    options = KerberosOptions.of(single_login_module(keytab_line("alice", realm.alice)).options)
    client = await GssapiLogin(options, "other").exchange("localhost")
    with pytest.raises(LoginRefused):
        await evaluated(mechanism(realm).begin(), next(client))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(realm: Realm, token: bytes) -> None:
    with pytest.raises(LoginRefused):
        asyncio.run(evaluated(mechanism(realm).begin(), token))


@given(place=st.integers(0, 10_000), change=st.integers(1, 255))
def test_a_damaged_token_logs_nobody_else_in(realm: Realm, alice: GssapiLogin, place: int, change: int) -> None:
    """Bits that no signature covers may change, but the identity is always that of the ticket."""
    server, (made, token) = mechanism(realm).begin(), context(alice)
    damaged = bytearray(token)
    damaged[place % len(token)] ^= change

    async def log_in() -> Reply:
        reply = await evaluated(server, bytes(damaged))
        made.step(reply.token)
        await evaluated(server, b"")
        return await evaluated(server, made.wrap(NO_LAYER, False).message)

    refusals = (LoginRefused, gssapi_library().exceptions.GSSError)  # of the broker, and of the client
    with suppress(*refusals):
        assert asyncio.run(log_in()).identity == Identity(user("alice"))


# --- What cannot be used is refused at the start ---


@pytest.mark.parametrize(
    ("options", "properties", "reason"),
    [
        ({"principal": "stranger/localhost"}, {}, "stranger/localhost"),
        ({}, {"sasl_kerberos_principal_to_local_rules": "DEFAULT,RULE:[1:$2]"}, r"the format can contain \$0 to \$1"),
    ],
)
def test_a_broker_that_cannot_log_anybody_in(
    realm: Realm, options: dict[str, str], properties: dict[str, str], reason: str
) -> None:
    line = krb5_line({"useKeyTab": "true", "keyTab": realm.broker, "principal": BROKER} | options)
    with pytest.raises(ConfigError, match=reason):
        mechanism(realm, line, **properties)
