"""Every command reaches a secured broker with the properties file of a Java client, and shows none of its secrets."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from parley import Broker
from parley.protocol.link import Address, tls_refused
from parley.tools.cli import COMMANDS, cluster_client
from parley.tools.cli.librdkafka import Connection, unreached
from tests.broker.security.secured_brokers import MODULES, SecuredBrokers
from tests.support.certificates import Authority
from tests.tools.conftest import Parley, Typed

SECRET = "alice's secret"


@dataclass(frozen=True, slots=True)
class LibrdkafkaError:
    """An error event of librdkafka."""

    code: str
    text: str

    def name(self) -> str:
        return self.code

    def str(self) -> str:
        return self.text


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> SecuredBrokers:
    return SecuredBrokers(tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="module")
def secured_broker(secured: SecuredBrokers) -> Iterator[Broker]:
    own = ("log.dirs", "coordination.url", "coordination.session.timeout.ms")
    settings = {name: value for name, value in secured.settings(1).items() if name not in own}
    with Broker(settings) as running:
        yield running


def write(path: Path, properties: dict[str, str]) -> str:
    lines = (f"{name}={value}\n".replace("\\", "\\\\") for name, value in properties.items())
    path.write_text("".join(lines))
    return str(path)


@pytest.fixture
def typed(parley: Parley, secured: SecuredBrokers, secured_broker: Broker, tmp_path: Path) -> Parley:
    """Return a function that runs a command with the broker's address and the properties file."""
    config = write(tmp_path / "client.properties", secured.client_properties())

    def run(*words: str) -> Typed:
        reach = ("--bootstrap-server", secured_broker.bootstrap_servers, "--command-config", config)
        done = parley(*words, *reach)
        assert SECRET not in done.out + done.err
        return done

    return run


@pytest.mark.system
def test_records_travel_both_ways(typed: Parley, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed("topics", "--create", "--topic", "t").code == 0
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"one\ntwo\n")))
    sent = typed("produce", "--topic", "t")
    assert (sent.code, sent.err) == (0, "")
    read = typed("consume", "--topic", "t", "--from-beginning", "--max-messages", "2", "--group", "g")
    assert (read.code, read.lines) == (0, ["one", "two"])
    assert "g" in typed("groups", "--list").lines


@pytest.mark.system
@pytest.mark.parametrize(
    "words",
    [
        ("perf", "produce", "--topic", "p", "--num-records", "10", "--record-size", "10", "--throughput", "-1"),
        ("perf", "consume", "--topic", "p", "--num-records", "10", "--timeout", "30000"),
        ("perf", "latency", "--topic", "p", "--num-records", "2", "--producer-acks", "all", "--record-size", "10"),
        ("check", "--seconds", "0.1", "--partitions", "1", "--producers", "1"),
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_commands_on_librdkafka(typed: Parley, words: tuple[str, ...]) -> None:
    assert typed("topics", "--create", "--if-not-exists", "--topic", "p").code == 0
    if words[:2] == ("perf", "consume"):
        typed("perf", "produce", "--topic", "p", "--num-records", "10", "--record-size", "9", "--throughput", "-1")
    done = typed(*words)
    assert done.code == 0, done.err


OTHERS = (
    ("topics", "--list"),
    ("groups", "--list"),
    ("share-groups", "--list"),
    ("streams-groups", "--list"),
    ("configs", "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all"),
    ("acls", "--list"),
    ("delegation-tokens", "--describe"),
    ("security", "check"),
    ("offsets", "--topic", "o"),
    ("delete-records", "--offset-json-file", "{offsets}"),
    ("elect-leaders", "--election-type", "preferred", "--all-topic-partitions"),
    ("reassign", "--list"),
    ("balance", "--plan", "--interval", "0.1"),
    ("log-dirs", "--describe"),
    ("cluster", "cluster-id"),
    ("features", "describe"),
    ("metadata",),
    ("transactions", "list"),
    ("tail", "o", "--last", "1", "--no-follow"),
    ("top", "--once"),
    ("doctor",),
    ("support-bundle", "--to", "{archive}"),
)
"""Each command that needs only the protocol."""
FINDINGS = {
    "acls": "SECURITY_DISABLED",
    "delegation-tokens": "DELEGATION_TOKEN_AUTH_DISABLED",
    "security": "no-authorizer",
    "doctor": "0 errors, 1 warning",
}
"""The findings of commands that exit with 1 although they reached this broker."""
ON_LIBRDKAFKA = {"produce", "consume", "perf", "check"}
ELSEWHERE = {
    "console": "tests/tools/console",
    "load": "tests/pipeline",
    "mirror": "tests/pipeline/mirror",
    "profile": "tests/tools/test_profiles.py",
    "registry": "tests/pipeline/registry",
    "connect": "tests/pipeline/connect",
}
"""Commands with their own kinds of login, and the folders of their tests."""
REACH_NO_BROKER = {
    *("start", "coordination", "dump-log", "log-repair", "simulate", "zookeeper-security-migration"),
    *("completion", "version", "docs"),
}


def test_every_command_is_tried_on_a_secured_broker() -> None:
    tried = {words[0] for words in OTHERS} | ON_LIBRDKAFKA | ELSEWHERE.keys()
    assert tried | REACH_NO_BROKER == COMMANDS.keys()


@pytest.mark.parametrize("words", OTHERS, ids=lambda words: words[0])
def test_other_commands(typed: Parley, tmp_path: Path, words: tuple[str, ...]) -> None:
    typed("topics", "--create", "--if-not-exists", "--topic", "o", "--replication-factor", "1")
    offsets = tmp_path / "offsets.json"
    offsets.write_text('{"partitions": [{"topic": "o", "partition": 0, "offset": 0}], "version": 1}')
    paths = {"{offsets}": str(offsets), "{archive}": str(tmp_path / "bundle.tar.gz")}
    done = typed(*(paths.get(word, word) for word in words))
    finding = FINDINGS.get(words[0])
    assert done.code == (0 if finding is None else 1), done.err
    assert finding is None or finding in done.out + done.err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required username="alice" password="{SECRET}!";'},
         "rejects the login"),
        ({"security.protocol": "PLAINTEXT"}, "closes the connections of this client. If the listener needs TLS"),
        ({"sasl.mechanism": "SCRAM-SHA-256",
          "sasl.jaas.config": f'{MODULES}.scram.ScramLoginModule required username="alice" password="{SECRET}";'},
         "does not accept sasl.mechanism=SCRAM-SHA-256; it offers PLAIN"),
    ],
)  # fmt: skip
def test_a_refused_client_learns_why(
    parley: Parley,
    secured: SecuredBrokers,
    secured_broker: Broker,
    tmp_path: Path,
    change: dict[str, str],
    reason: str,
) -> None:
    config = write(tmp_path / "client.properties", secured.client_properties() | change)
    done = parley(
        "topics", "--list", "--bootstrap-server", secured_broker.bootstrap_servers, "--command-config", config
    )
    assert done.code == 1
    assert reason in done.err
    assert SECRET not in done.err
    assert "Traceback" not in done.err


def test_an_untrusted_broker_is_told_with_the_trust_store(
    parley: Parley, secured: SecuredBrokers, secured_broker: Broker, tmp_path: Path
) -> None:
    other = Authority("other").write(tmp_path / "other.pem")
    properties = secured.client_properties() | {"ssl.truststore.location": str(other)}
    config = write(tmp_path / "client.properties", properties)
    done = parley(
        "topics", "--list", "--bootstrap-server", secured_broker.bootstrap_servers, "--command-config", config
    )
    assert f"; trusted are the certificates in ssl.truststore.location={other}. " in done.err


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("TLSV1_ALERT_UNKNOWN_CA", "the broker does not trust the authority of the client's certificate"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "alert certificate required; set ssl.keystore.location"),
    ],
)
def test_an_alert_about_the_certificate_of_the_client_is_explained(reason: str, told: str) -> None:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    assert told in tls_refused(Address("b", 9093), error).message


def test_commands_on_librdkafka_learn_that_a_certificate_is_for_another_name(
    secured: SecuredBrokers, secured_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "_ASKED_AGAIN_S", 60.0)
    address = secured_broker.bootstrap_servers.replace("127.0.0.1", "127.1")  # the same address, under another name
    unverified = LibrdkafkaError("_SSL", "broker certificate could not be verified, verify that ssl.ca.location is ...")
    for properties, told in (
        (secured.client_properties(), "certificate is not valid for '127.1'"),
        (secured.client_properties() | {"ssl.ca.location": "/ca.pem"}, "ssl.ca.location is ..."),
    ):
        connection = Connection(address, properties)
        connection.on_error(unverified)
        assert told in unreached(connection, "")


def test_parley_check_learns_at_once_that_its_login_is_refused(
    parley: Parley, secured: SecuredBrokers, secured_broker: Broker, tmp_path: Path
) -> None:
    line = f'{MODULES}.plain.PlainLoginModule required username="alice" password="{SECRET}!";'
    config = write(tmp_path / "client.properties", secured.client_properties() | {"sasl.jaas.config": line})
    done = parley("check", "--bootstrap-server", secured_broker.bootstrap_servers, "--command-config", config)
    assert done.code == 1
    assert "rejects the login" in done.err
    assert SECRET not in done.err


def test_commands_on_librdkafka_learn_why_a_listener_closes_their_connections(
    secured_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "_ASKED_AGAIN_S", 60.0)
    connection = Connection(secured_broker.bootstrap_servers, {})
    assert "closes the connections of this client. If the listener needs TLS" in unreached(connection, "timed out")


def test_commands_on_librdkafka_name_a_refused_login() -> None:
    connection = Connection("b:9093", {})
    connection.on_error(LibrdkafkaError("_AUTHENTICATION", "SASL authentication error"))
    connection.on_error(LibrdkafkaError("_TRANSPORT", "disconnected"))
    said = unreached(connection, connection.reason)
    assert "b:9093 rejects this client. Correct the security settings" in said
    assert "SASL authentication error" in said
