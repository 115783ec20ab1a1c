"""Real clients on listeners with TLS and SASL: librdkafka, kafka-python, aiokafka, Apache Kafka's tools, openssl."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from parley import Broker
from tests.broker.security.sasl.tokens import ISSUER, jwks, signed
from tests.support.certificates import Authority
from tests.support.kafka import KAFKA_3, KAFKA_4
from tests.support.kafka_tools import Typed, run_tool

WAIT_SECONDS = 60
MODULES = "org.apache.kafka.common.security"
LOGIN_MODULES = {"PLAIN": "plain.PlainLoginModule"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = 'a "secret" of ö, = and \\'
"""A password with characters that JAAS, SCRAM and UTF-8 treat specially."""


@dataclass(frozen=True)
class Secured:
    """A broker with a listener of each protocol, and the certificates of its clients."""

    broker: Broker
    folder: Path

    def address(self, listener: str) -> str:
        (found,) = [each for each in self.broker.server.endpoints if each.listener == listener]
        return f"localhost:{found.port}"

    @property
    def trust(self) -> str:
        return str(self.folder / "trusted.pem")


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority()
    authority.write(folder / "trusted.pem")
    authority.issue("CN=broker", "localhost", "127.0.0.1").write_pkcs12(folder / "broker.p12", "store password")
    alice = authority.issue("CN=alice,OU=ops")
    alice.write_pem(folder / "alice.pem", "key password")
    alice.write_pkcs12(folder / "alice.p12", "alice's")  # Java opens no encrypted PEM of OpenSSL's
    keys = folder / "keys.json"
    keys.write_bytes(jwks("rsa"))
    plain = f"{MODULES}.plain.PlainLoginModule required user_alice={quoted(PASSWORD)};"
    with Broker(
        {
            "listeners": ",".join(
                f"{name}://127.0.0.1:0" for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
            ),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(folder / "broker.p12"),
            "ssl.keystore.password": "store password",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "trusted.pem"),
            "ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": plain,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "connection.failed.authentication.delay.ms": "5",
        }
    ) as broker:
        made = Secured(broker, folder)
        upserts = [
            UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        with AdminClient({"bootstrap.servers": made.address("PLAINTEXT")}) as admin:
            for upsert in upserts:
                admin.alter_user_scram_credentials([upsert])["alice"].result(WAIT_SECONDS)
        yield made


def rdkafka(secured: Secured, listener: str, mechanism: str = "PLAIN", password: str = PASSWORD) -> dict[str, str]:
    """Return the configuration of a librdkafka client."""
    found = {"bootstrap.servers": secured.address(listener), "security.protocol": listener}
    if "SSL" in listener:
        found["ssl.ca.location"] = secured.trust
    if listener == "SSL":
        found |= {
            "ssl.certificate.location": str(secured.folder / "alice.pem"),
            "ssl.key.location": str(secured.folder / "alice.pem"),
            "ssl.key.password": "key password",
        }
    if "SASL" in listener:
        found |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password}
    return found


def java(secured: Secured, path: Path, listener: str, mechanism: str = "PLAIN", password: str = PASSWORD) -> str:
    """Write the properties of a Java client, and return their path."""
    found = {"security.protocol": listener}
    if "SSL" in listener:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": secured.trust}
    if listener == "SSL":
        found |= {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(secured.folder / "alice.p12"),
            "ssl.keystore.password": "alice's",
        }
    if "SASL" in listener:
        module = LOGIN_MODULES.get(mechanism, "scram.ScramLoginModule")
        line = f"{MODULES}.{module} required username=alice password={quoted(password)};"
        found |= {"sasl.mechanism": mechanism, "sasl.jaas.config": line}
    path.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in found.items()))
    return str(path)


def _escaped(value: str) -> str:
    """Return a value escaped for a Java properties file."""
    return "".join("\\\\" if each == "\\" else each if each < "\x7f" else f"\\u{ord(each):04x}" for each in value)


def exchange(config: Mapping[str, Any], topic: str, values: list[bytes]) -> None:
    """Produce values and consume them with librdkafka."""
    producer = Producer({**config, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(WAIT_SECONDS) == 0
    consumer = Consumer({**config, "group.id": f"of-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found) < len(values):
        assert time.monotonic() < deadline, f"{len(found)} records"
        found += [message.value() for message in consumer.consume(len(values), 0.5) if message.error() is None]
    consumer.close()
    assert found == values


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("SSL", ""), *((each, mechanism) for each in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS)],
)
def test_librdkafka(secured: Secured, new_name: Callable[..., str], listener: str, mechanism: str) -> None:
    values = [b"%d " % number * 1000 for number in range(100)]
    exchange(rdkafka(secured, listener, mechanism), new_name(), values)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_learns_that_the_password_is_wrong(secured: Secured, mechanism: str) -> None:
    errors: list[KafkaError] = []
    config = rdkafka(secured, "SASL_SSL", mechanism, "wrong")
    producer = Producer({**config, "error_cb": errors.append, "log.queue": True})
    deadline = time.monotonic() + WAIT_SECONDS
    while not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
        assert time.monotonic() < deadline, errors
        producer.poll(0.1)


@pytest.mark.parametrize("version", [KAFKA_4, KAFKA_3])
@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("SSL", ""), ("SASL_SSL", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-256"), ("SASL_PLAINTEXT", "SCRAM-SHA-512")],
)
def test_the_tools_of_apache_kafka(
    secured: Secured, new_name: Callable[..., str], tmp_path: Path, version: str, listener: str, mechanism: str
) -> None:
    topic = new_name()
    common = ("--bootstrap-server", secured.address(listener), "--command-config")
    properties = java(secured, tmp_path / "client.properties", listener, mechanism)
    tool = "org.apache.kafka.tools.TopicCommand"
    made = run_tool(tool, *common, properties, "--create", "--topic", topic, version=version)
    assert made.code == 0, made.err
    assert topic in run_tool(tool, *common, properties, "--list", version=version).lines


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_apache_kafka_learns_that_the_password_is_wrong(secured: Secured, tmp_path: Path, mechanism: str) -> None:
    properties = java(secured, tmp_path / "client.properties", "SASL_SSL", mechanism, "wrong")
    refused = _list_topics(secured, "SASL_SSL", properties)
    assert refused.code != 0
    assert "SaslAuthenticationException" in refused.out + refused.err
    assert "wrong" not in refused.out + refused.err


def _list_topics(secured: Secured, listener: str, properties: str) -> Typed:
    common = ("--bootstrap-server", secured.address(listener), "--command-config", properties)
    return run_tool("org.apache.kafka.tools.TopicCommand", *common, "--list")


def test_apache_kafka_learns_that_a_mechanism_is_not_enabled(secured: Secured, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    java(secured, path, "SASL_SSL")
    module = f"{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=alice;"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("sasl.")]
    path.write_text("\n".join([*lines, "sasl.mechanism=OAUTHBEARER", f"sasl.jaas.config={module}"]))
    refused = _list_topics(secured, "SASL_SSL", str(path))
    assert refused.code != 0
    assert "UnsupportedSaslMechanismException" in refused.out + refused.err


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(secured: Secured, new_name: Callable[..., str], mechanism: str) -> None:
    topic = new_name()
    config = {
        "bootstrap_servers": secured.address("SASL_SSL"),
        "security_protocol": "SASL_SSL",
        "ssl_cafile": secured.trust,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    producer = KafkaProducer(**config)
    producer.send(topic, b"one").get(WAIT_SECONDS)
    producer.close()
    consumer = KafkaConsumer(topic, **config, auto_offset_reset="earliest")
    (records,) = consumer.poll(WAIT_SECONDS * 1000).values()
    consumer.close()
    assert [record.value for record in records] == [b"one"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka(secured: Secured, new_name: Callable[..., str], mechanism: str) -> None:
    topic = new_name()
    config = {
        "bootstrap_servers": secured.address("SASL_SSL"),
        "security_protocol": "SASL_SSL",
        "ssl_context": create_ssl_context(cafile=secured.trust),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    async with AIOKafkaProducer(**config) as producer:
        await producer.send_and_wait(topic, b"one")
    async with AIOKafkaConsumer(topic, **config, auto_offset_reset="earliest") as consumer:
        assert (await consumer.getone()).value == b"one"


def bearer(secured: Secured, token: str) -> dict[str, Any]:
    """Return the configuration of a librdkafka client with this token."""
    return {
        "bootstrap.servers": secured.address("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + 300),
    }


def test_librdkafka_logs_in_with_a_token(secured: Secured, new_name: Callable[..., str]) -> None:
    exchange(bearer(secured, signed()), new_name(), [b"one", b"two"])


def test_librdkafka_learns_that_its_token_is_forged(secured: Secured) -> None:
    errors: list[KafkaError] = []
    producer = Producer({**bearer(secured, signed("stranger", named="rsa")), "error_cb": errors.append})
    deadline = time.monotonic() + WAIT_SECONDS
    while not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
        assert time.monotonic() < deadline, errors
        producer.poll(0.1)
    assert "invalid_token" in str(errors)


class Token(AbstractTokenProvider):  # type: ignore[misc]
    """The provider from which aiokafka gets its token."""

    async def token(self) -> str:
        return signed()


async def test_aiokafka_logs_in_with_a_token(secured: Secured, new_name: Callable[..., str]) -> None:
    config = {
        "bootstrap_servers": secured.address("SASL_PLAINTEXT"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Token(),
    }
    async with AIOKafkaProducer(**config) as producer:
        await producer.send_and_wait(new_name(), b"one")


def openssl(secured: Secured, listener: str, *args: str) -> str:
    """Return the output of ``openssl s_client`` for a handshake."""
    command = ["openssl", "s_client", "-connect", secured.address(listener), "-CAfile", secured.trust, *args]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("version", ["1_2", "1_3"])
def test_openssl_shakes_hands(secured: Secured, version: str) -> None:
    found = openssl(secured, "SASL_SSL", f"-tls{version}", "-verify_return_error")
    assert "Verify return code: 0 (ok)" in found
    assert f"TLSv{version.replace('_', '.')}" in found


@pytest.mark.parametrize("version", ["1", "1_1"])
def test_openssl_is_refused_with_an_old_version(secured: Secured, version: str) -> None:
    found = openssl(secured, "SASL_SSL", f"-tls{version}", "-cipher", "ALL:@SECLEVEL=0")
    assert "Cipher is (NONE)" in found


def test_openssl_is_asked_for_a_certificate_where_the_listener_wants_one(secured: Secured) -> None:
    assert "Requested Signature Algorithms" in openssl(secured, "SSL")
    assert "Requested Signature Algorithms" not in openssl(secured, "SASL_SSL")
