"""``parley security check``: each row of its table on an example, real files, and running clusters."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from parley import Broker
from parley.broker.config import BrokerConfig
from parley.broker.security.acls.bindings import AclBinding, PatternType, PermissionType, ResourcePattern
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.consensus.errors import CoordinationError
from parley.consensus.protection import Finding as StoreFinding
from parley.consensus.protection import Guard, Protection
from parley.tools.security_check.checks import CHECKS, Severity, _readable_data, findings
from parley.tools.security_check.cluster_subjects import _strangers, subjects_of_cluster
from parley.tools.security_check.file_subject import _secret_files, _trust_files, subject_of_file
from parley.tools.security_check.subject import PROPERTIES_FILE, FileMode, Subject
from tests.broker.security.secured_brokers import USERS, SecuredBrokers, bootstrap, plain_line
from tests.support.certificates import Authority
from tests.tools.conftest import Parley

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MODULES = "org.apache.kafka.common.security"
LOGIN = f'{MODULES}.scram.ScramLoginModule required username="broker" password="${{file:/run/secrets/p:broker}}";'
CLOSED: dict[str, str] = {
    "listeners": "CLIENTS://10.0.0.1:9092,BROKERS://10.0.0.1:9093",
    "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SASL_SSL",
    "inter.broker.listener.name": "BROKERS",
    "ssl.keystore.location": "/etc/parley/broker.pem",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "listener.name.brokers.scram-sha-512.sasl.jaas.config": LOGIN,
    "connections.max.reauth.ms": "3600000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "password.encoder.secret": "${file:/run/secrets/p:encoder}",
    "metrics.listener": "127.0.0.1:9464",
}
LOCKED = Protection(StoreFinding(Guard.CLOSED, "locked"), StoreFinding(Guard.CLOSED, "TLS"))
CLIENTS = "listener.name.clients."
UNSECURED = f"{MODULES}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"


def subject(changes: dict[str, str] | None = None, **more: Any) -> Subject:
    """Return the secure configuration with changes, and other known facts."""
    settings = CLOSED | (changes or {})
    config = BrokerConfig.from_properties(settings)
    known: dict[str, Any] = {
        "secret_files": [FileMode("ssl.keystore.location", "/etc/parley/broker.pem", 0o100600)],
        "data_folders": [FileMode("log.dirs", "/data", 0o40700)],
        "certificates": {"CLIENTS": NOW + timedelta(days=31)},
        "acls": [acl("User:alice", Operation.ALL, "orders")],
        "store": LOCKED,
    }
    return Subject("here", config, NOW, written=settings, **(known | more))


def acl(
    principal: str, operation: Operation, topic: str, permission: PermissionType = PermissionType.ALLOW
) -> AclBinding:
    pattern = ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, topic)
    return AclBinding(pattern, principal, "*", operation, permission)


OPEN_STORE = replace(LOCKED, tree=StoreFinding(Guard.OPEN, "etcd has no users", "etcdctl auth enable"))
PLAIN_STORE = replace(LOCKED, connection=StoreFinding(Guard.OPEN, "plaintext", "ca-file"))
PROTOCOLS = "listener.security.protocol.map"
OAUTH = {"sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-512"}
BOUND = {"sasl.oauthbearer.expected.issuer": "us", "sasl.oauthbearer.expected.audience": "kafka"}

EXAMPLES: dict[str, tuple[Subject, str]] = {
    "plaintext-listener": (
        subject({PROTOCOLS: "CLIENTS:SASL_PLAINTEXT,BROKERS:SASL_SSL"}),
        "CLIENTS://10.0.0.1:9092 is SASL_PLAINTEXT",
    ),
    "no-login": (
        subject({PROTOCOLS: "CLIENTS:SSL,BROKERS:SASL_SSL", "bootstrap.listeners": "CLIENTS://:9000"}),
        "CLIENTS://:9000 is SSL: its clients are User:ANONYMOUS",
    ),
    "stranger-served": (subject(strangers=["served"]), "served"),
    "plain-without-tls": (
        subject(
            {PROTOCOLS: "CLIENTS:SASL_PLAINTEXT,BROKERS:SASL_SSL", "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512"}
        ),
        "CLIENTS://10.0.0.1:9092 allows PLAIN",
    ),
    "old-tls": (subject({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}), "names TLSv1.1"),
    "weak-ciphers": (
        subject({f"{CLIENTS}ssl.cipher.suites": "TLS_RSA_WITH_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384"}),
        "CLIENTS://10.0.0.1:9092 allows TLS_RSA_WITH_AES_128_GCM_SHA256",
    ),
    "expired-certificate": (subject(certificates={"X": NOW - timedelta(days=1)}), "of X expired at 2029-12-31T00:00"),
    "expiring-certificate": (subject(certificates={"X": NOW + timedelta(days=30)}), "of X expires at 2030-01-31"),
    "expired-revocation-list": (
        subject(revocation_lists={"X": NOW - timedelta(days=1), "Y": NOW + timedelta(seconds=1)}),
        "a revocation list of X expired at 2029-12-31T00:00",
    ),
    "unsecured-tokens": (
        subject(OAUTH | BOUND | {f"{CLIENTS}oauthbearer.sasl.server.callback.handler.class": UNSECURED}),
        "CLIENTS://10.0.0.1:9092 accepts tokens without a signature",
    ),
    "tokens-of-others": (
        subject(OAUTH | BOUND | {"sasl.oauthbearer.expected.audience": ""}),
        "sasl.oauthbearer.expected.audience not set",
    ),
    "inter-broker-open": (
        subject({PROTOCOLS: "CLIENTS:SASL_SSL,BROKERS:SSL"}),
        "brokers communicate over BROKERS://10.0.0.1:9093, which is SSL",
    ),
    "inter-broker-certificate": (
        subject(refused_between_brokers="certificate has expired"),
        "brokers refuse the certificate of BROKERS://10.0.0.1:9093: certificate has expired",
    ),
    "hosts-not-verified": (
        subject({"listener.name.brokers.ssl.endpoint.identification.algorithm": ""}),
        "do not verify the host names in each other's certificates",
    ),
    "shared-listener": (
        subject({"listeners": "BROKERS://10.0.0.1:9093"}),
        "clients and brokers share BROKERS://10.0.0.1:9093",
    ),
    "no-authorizer": (subject({"authorizer.class.name": ""}), "every client may do everything"),
    "allow-everyone": (subject({"allow.everyone.if.no.acl.found": "true"}), "allow.everyone.if.no.acl.found=true"),
    "anonymous-super-user": (subject({"super.users": "User:a;User:ANONYMOUS"}), "super.users contains User:ANONYMOUS"),
    "super-users": (subject({"super.users": "User:a;User:b"}), "ACLs do not restrict User:a, User:b"),
    "anonymous-rights": (
        subject(acls=[acl("User:ANONYMOUS", Operation.DESCRIBE, "t")]),
        "ALLOW User:ANONYMOUS DESCRIBE on TOPIC:LITERAL:t",
    ),
    "everyone-may-change": (subject(acls=[acl("User:*", Operation.WRITE, "t")]), "ALLOW User:* WRITE"),
    "everyone-may-read": (subject(acls=[acl("User:*", Operation.READ, "t")]), "ALLOW User:* READ"),
    "wildcard-resource": (subject(acls=[acl("User:a", Operation.ALL, "*")]), "ALLOW User:a ALL on TOPIC:LITERAL:*"),
    "endless-sessions": (
        subject({f"{CLIENTS}connections.max.reauth.ms": "0"}),
        "a connection to CLIENTS://10.0.0.1:9092 outlives",
    ),
    "readable-secrets": (
        subject(secret_files=[FileMode("ssl.keystore.location", "/k.pem", 0o100604)]),
        "/k.pem (ssl.keystore.location) has the mode 604",
    ),
    "writable-trust": (
        subject(trust_files=[FileMode("ssl.crl.location", "/revoked.pem", 0o100664)]),
        "/revoked.pem (ssl.crl.location) has the mode 664",
    ),
    "readable-data": (
        subject(data_folders=[FileMode("log.dirs", "/data", 0o40755)]),
        "/data (log.dirs) has the mode 755",
    ),
    "password-in-file": (subject({"ssl.key.password": "marked"}), "ssl.key.password has its value in the file"),
    "passwords-in-store": (
        Subject(
            "here",
            BrokerConfig.from_properties({key: value for key, value in CLOSED.items() if "encoder" not in key}),
            NOW,
        ),
        "password.encoder.secret is not set",
    ),
    "open-store": (subject(store=OPEN_STORE), "etcd has no users"),
    "plaintext-store": (subject(store=PLAIN_STORE), "plaintext"),
    "open-metrics": (subject({"metrics.listener": "0.0.0.0:9464"}), "metrics.listener=0.0.0.0:9464"),
}


def test_every_row_has_an_example_and_a_name_of_its_own() -> None:
    assert [check.name for check in CHECKS] == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_check_finds_its_weakness(name: str) -> None:
    example, text = EXAMPLES[name]
    found = {finding.check.name: finding for finding in findings(example)}
    assert name in found
    assert text in found[name].text
    assert "marked" not in found[name].text


def test_nothing_is_found_if_nothing_is_open() -> None:
    assert findings(subject()) == []
    denied = acl("User:*", Operation.ALL, "*", PermissionType.DENY)
    assert findings(subject(acls=[denied])) == []


def test_sessions_end_by_the_keys_of_their_mechanisms() -> None:
    """A mechanism's own key counts, as it does at a login."""
    ending = {"connections.max.reauth.ms": "1000"}
    of_scram, of_plain = (f"{CLIENTS}{name}.connections.max.reauth.ms" for name in ("scram-sha-512", "plain"))
    both = {f"{CLIENTS}sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN"}
    names = [
        {finding.check.name for finding in findings(subject(changes))} & {"endless-sessions"}
        for changes in (
            {f"{CLIENTS}connections.max.reauth.ms": "0", of_scram: "1000"},
            ending | {of_scram: "0"},
            both | ending | {of_plain: "0"},
            both | {f"{CLIENTS}connections.max.reauth.ms": "0", of_scram: "1000", of_plain: "1000"},
        )
    ]
    assert names == [set(), {"endless-sessions"}, {"endless-sessions"}, set()]


def test_a_group_may_read_files() -> None:
    assert findings(subject(secret_files=[FileMode("ssl.keystore.location", "/k.pem", 0o100640)])) == []


def test_only_owners_replace_files_in_a_folder_with_the_sticky_bit() -> None:
    assert findings(subject(trust_files=[FileMode("the folder of ssl.crl.location", "/tmp", 0o41777)])) == []
    (found,) = findings(subject(trust_files=[FileMode("the folder of ssl.crl.location", "/etc/p", 0o40777)]))
    assert found.check.name == "writable-trust"


def test_the_files_that_decide_who_may_log_in() -> None:
    given = {
        "listener.name.clients.ssl.truststore.location": "/trust/t.pem",
        "ssl.crl.location": "/lists/revoked.pem",
        "ssl.keystore.location": "/own/key.pem",
        "sasl.oauthbearer.jwks.endpoint.url": "file:///keys/the%20keys.json",
        "listener.name.brokers.sasl.oauthbearer.jwks.endpoint.url": "https://issuer/keys",
    }
    paths = [path for _, path in _trust_files(Path("/etc/p/f"), given)]
    files = ["/etc/p/f", "/trust/t.pem", "/lists/revoked.pem", "/keys/the keys.json"]
    assert paths == [*files, "/etc/p", "/trust", "/lists", "/keys", "/own"]


@pytest.mark.parametrize(("equals", "is_found"), [("=", True), (" = ", True), ("file=", False)])
def test_passwords_in_jaas_lines(equals: str, is_found: bool) -> None:
    key = "listener.name.brokers.scram-sha-512.sasl.jaas.config"
    line = f'ScramLoginModule required username="broker" password{equals}"marked";'
    names = [each.check.name for each in findings(subject({key: line}))]
    assert names == (["password-in-file"] if is_found else [])


def test_a_folder_of_secrets_is_not_a_secret(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir(mode=0o755)
    (secrets / "key").write_text("marked")
    (secrets / "key").chmod(0o644)
    files = list(_secret_files(Path("/f"), {"ssl.key.password": f"${{dir:{secrets}:key}}"}, {}))
    assert files == [(PROPERTIES_FILE, "/f"), ("ssl.key.password", f"{secrets}/key")]


def test_metrics_with_tls_and_a_login_are_closed() -> None:
    key = "listener.name.metrics.plain.sasl.jaas.config"
    closed = {"metrics.listener": "https://0.0.0.0:9464", key: "${file:/run/secrets/p:metrics}"}
    assert findings(subject(closed)) == []
    for users in ({}, {key: " "}):
        (found,) = findings(subject({"metrics.listener": "https://0.0.0.0:9464", **users}))
        assert "has no login" in found.text


def test_client_certificates_are_a_login() -> None:
    required = {PROTOCOLS: "CLIENTS:SSL,BROKERS:SSL", "ssl.client.auth": "required"}
    assert not {each.check.name for each in findings(subject(required))} & {"no-login", "inter-broker-open"}
    requested = required | {f"{CLIENTS}ssl.client.auth": "requested"}
    assert {each.check.name for each in findings(subject(requested))} == {"no-login"}


def test_a_store_has_its_own_advice_and_the_worst_comes_first() -> None:
    folders = [FileMode("log.dirs", "/data", 0o40755)]
    found = findings(subject({"super.users": "User:a"}, store=OPEN_STORE, data_folders=folders))
    assert [each.check.severity for each in found] == [Severity.HIGH, Severity.MEDIUM, Severity.NOTE]
    assert found[0].advice == "etcdctl auth enable"


def test_a_properties_file_without_passwords_may_be_read_by_all() -> None:
    files = [FileMode(PROPERTIES_FILE, "/etc/server.properties", 0o100644)]
    assert findings(subject(secret_files=files)) == []
    names = {each.check.name for each in findings(subject({"ssl.key.password": "x"}, secret_files=files))}
    assert names == {"readable-secrets", "password-in-file"}


# --- Files ---


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """Return the settings of a broker whose files other users cannot read."""
    tmp_path.chmod(0o700)
    authority = Authority()
    expires = datetime.now(UTC) + timedelta(days=300)
    key_store = authority.issue("CN=broker", "localhost", expires=expires).write_pem(tmp_path / "broker.pem")
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("broker=marked\nencoder=marked too\n")
    for file in (key_store, secrets):
        file.chmod(0o600)
    (tmp_path / "data").mkdir(mode=0o700)
    provider = {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    return {
        **{key: value.replace("/run/secrets/p", str(secrets)) for key, value in CLOSED.items()},
        **provider,
        "ssl.keystore.location": str(key_store),
        "ssl.truststore.location": str(authority.write(tmp_path / "trust.pem")),
        "log.dirs": str(tmp_path / "data"),
    }


def written(path: Path, settings: dict[str, str]) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    path.chmod(0o600)
    return str(path)


def test_a_file_that_leaves_nothing_open(parley: Parley, settings: dict[str, str], tmp_path: Path) -> None:
    checked = parley("security", "check", written(tmp_path / "server.properties", settings))
    assert checked.code == 0, checked.out
    assert checked.lines[-1] == f"Nothing is open: {len(CHECKS)} checks."
    assert "not checked: the store: no broker has used it yet" in checked.lines


def test_unsafe_files_are_findings(parley: Parley, settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").chmod(0o644)
    (tmp_path / "broker.pem").chmod(0o660)
    (tmp_path / "data").chmod(0o775)
    Authority().issue("CN=b", expires=datetime.now(UTC) - timedelta(days=1)).write_pem(tmp_path / "broker.pem")
    path = written(tmp_path / "server.properties", settings)
    checked = parley("security", "check", path, "--json")
    found = json.loads(checked.out)
    assert (checked.code, found["open"]) == (1, True)
    assert sorted(each["check"] for each in found["findings"]) == [
        "expired-certificate",
        "expired-certificate",
        "inter-broker-certificate",
        "readable-data",
        "readable-secrets",
        "readable-secrets",
    ]
    assert {each["severity"] for each in found["findings"]} == {"high", "medium"}
    assert all(each["in"] == [path] for each in found["findings"])
    assert "marked" not in checked.out


def test_the_revocation_lists_of_a_file(settings: dict[str, str], tmp_path: Path) -> None:
    expires = datetime(2026, 1, 2, tzinfo=UTC)
    (tmp_path / "revoked.pem").write_text(Authority().revocation_list(expires=expires))
    settings["ssl.crl.location"] = str(tmp_path / "revoked.pem")
    checked, _ = subject_of_file(Path(written(tmp_path / "server.properties", settings)), NOW)
    assert set(checked.revocation_lists.values()) == {expires}
    assert "expired-revocation-list" in {each.check.name for each in findings(checked)}


def test_data_below_a_folder_that_keeps_others_out(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "data").chmod(0o755)
    tmp_path.chmod(0o700)
    checked, _ = subject_of_file(Path(written(tmp_path / "server.properties", settings)), NOW)
    (folder,) = checked.data_folders
    assert not folder.is_reachable
    assert list(_readable_data(checked)) == []
    assert list(_readable_data(replace(checked, data_folders=[replace(folder, is_reachable=True)]))) != []


@pytest.mark.parametrize(
    ("pattern", "operation", "host", "words"),
    [
        ((ResourceType.TOPIC, PatternType.LITERAL, "*"), Operation.READ, "*", "--operation Read --topic '*'"),
        (
            (ResourceType.CLUSTER, PatternType.LITERAL, "kafka-cluster"),
            Operation.DESCRIBE_CONFIGS,
            "*",
            "--operation DescribeConfigs --cluster",
        ),
        (
            (ResourceType.GROUP, PatternType.PREFIXED, "g-"),
            Operation.READ,
            "10.0.0.1",
            "--operation Read --allow-host 10.0.0.1 --group g- --resource-pattern-type prefixed",
        ),
    ],
)
def test_the_command_that_removes_anonymous_rights_can_be_typed(
    pattern: tuple[ResourceType, PatternType, str], operation: Operation, host: str, words: str
) -> None:
    binding = AclBinding(ResourcePattern(*pattern), "User:ANONYMOUS", host, operation, PermissionType.ALLOW)
    (found,) = (each for each in findings(subject(acls=[binding])) if each.check.name == "anonymous-rights")
    assert found.advice == f"remove it: parley acls --remove --allow-principal User:ANONYMOUS {words}"


def test_a_keytab_that_others_can_read(parley: Parley, settings: dict[str, str], tmp_path: Path) -> None:
    keytab = tmp_path / "broker.keytab"
    keytab.touch()
    keytab.chmod(0o644)
    key = "listener.name.sasl_ssl.gssapi.sasl.jaas.config"
    line = f'Krb5LoginModule required useKeyTab=true keyTab="FILE:{keytab}" principal="kafka/broker";'
    path = written(tmp_path / "server.properties", settings | {key: line})
    found = json.loads(parley("security", "check", path, "--json").out)["findings"]
    assert [each["check"] for each in found] == ["readable-secrets"]
    assert f"{keytab} (keyTab of {key}) has the mode 644" in str(found)
    keytab.chmod(0o600)
    assert parley("security", "check", path).code == 0


@pytest.mark.slow
def test_the_store_of_a_file_is_asked(parley: Parley, settings: dict[str, str], tmp_path: Path) -> None:
    url = f"local://{tmp_path}/store"
    assert parley("coordination", "check", url).code in (0, 1)  # creates the store
    path = written(tmp_path / "server.properties", settings | {"coordination.url": url})
    assert parley("security", "check", path).code == 0
    (tmp_path / "store").chmod(0o755)
    checked = parley("security", "check", path)
    assert checked.code == 1
    assert f"to close it: chmod -R go-rwx {tmp_path}/store" in checked.out


def test_a_store_that_does_not_respond_leaves_the_check_incomplete(
    parley: Parley, settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = AsyncMock(side_effect=CoordinationError("no server responds"))
    monkeypatch.setattr("parley.tools.security_check.file_subject.open_existing", silent)
    path = written(tmp_path / "server.properties", settings)
    checked = parley("security", "check", path)
    assert checked.code == 3, checked.out
    assert checked.lines[-1] == "Nothing is known to be open, but the check is incomplete: see what was not checked."
    assert "not checked: the store: no server responds" in checked.lines
    found = json.loads(parley("security", "check", path, "--json").out)
    assert (found["open"], found["complete"]) == (False, False)


async def test_a_stranger_that_cannot_try_is_no_stranger_that_is_refused() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        served, unchecked = await _strangers(f"127.0.0.1:{closed.getsockname()[1]}")
    assert served == []
    assert [each.has_failed for each in unchecked] == [True, True]
    assert unchecked[0].text.startswith("clients with neither TLS nor a login: ")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "Name a broker's properties file"),
        (("/nowhere/server.properties",), "cannot be read"),
        (("server.properties", "--bootstrap-server", "localhost:1"), "Name a broker's properties file"),
    ],
)
def test_wrong_usage(parley: Parley, words: tuple[str, ...], reason: str) -> None:
    refused = parley("security", "check", *words)
    assert (refused.code, refused.out) == (1, "")
    assert reason in refused.err


def test_the_brokers_of_a_file_refuse_its_certificate(settings: dict[str, str], tmp_path: Path) -> None:
    Authority("other").write(tmp_path / "trust.pem")
    checked, _ = subject_of_file(Path(written(tmp_path / "server.properties", settings)), datetime.now(UTC))
    (found,) = findings(checked)
    assert found.check.name == "inter-broker-certificate"
    assert found.text.endswith(": unable to get local issuer certificate")


def test_a_file_that_no_broker_would_start_with(parley: Parley, tmp_path: Path) -> None:
    refused = parley("security", "check", written(tmp_path / "f", {"listeners": "SSL://:9093"}))
    assert refused.code == 1
    assert "ssl.keystore.location" in refused.err


def test_a_file_is_read_as_the_broker_reads_it(parley: Parley, settings: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    checked = parley("security", "check", written(file, {**settings, "num.partition": "3"}))
    assert checked.code == 0
    assert "num.partition is not a configuration key: did you mean num.partitions?" in checked.err
    ranger = "org.apache.ranger.authorization.kafka.authorizer.RangerKafkaAuthorizer"
    refused = parley("security", "check", written(file, {**settings, "authorizer.class.name": ranger}))
    assert refused.code == 1
    assert "authorizer.class.name" in refused.err
    assert "a Java class cannot be loaded" in refused.err


# --- Clusters ---


def test_an_open_cluster(parley: Parley, broker: Broker) -> None:
    checked = parley("security", "check", "--bootstrap-server", broker.bootstrap_servers, "--json")
    found = {each["check"]: each for each in json.loads(checked.out)["findings"]}
    assert checked.code == 1
    assert {"plaintext-listener", "no-login", "no-authorizer", "stranger-served"} <= found.keys()
    assert "serves clients with neither TLS nor a login" in found["stranger-served"]["text"]
    assert found["no-authorizer"]["in"] == ["broker 1"]


PLAIN = f"{MODULES}.plain.PlainLoginModule required"
SECURED = {
    "listener.security.protocol.map": "SECURE:SASL_SSL",
    "listeners": "SECURE://127.0.0.1:0",
    "inter.broker.listener.name": "SECURE",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.secure.plain.sasl.jaas.config": (
        f'{PLAIN} username="broker" password="marked" user_broker="marked" user_alice="marked too";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:broker",
    "password.encoder.secret": "marked",
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    """Yield a secured broker, and a folder with the properties files of its users."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority()
    expires = datetime.now(UTC) + timedelta(days=10)
    key_store = authority.issue("CN=broker", "127.0.0.1", expires=expires).write_pem(folder / "broker.pem")
    trust = authority.write(folder / "trust.pem")
    for user, password in (("broker", "marked"), ("alice", "marked too")):
        (folder / f"{user}.properties").write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nssl.truststore.location={trust}\n"
            f'sasl.jaas.config={PLAIN} username="{user}" password="{password}";\n'
        )
    with Broker({**SECURED, "ssl.keystore.location": str(key_store), "ssl.truststore.location": str(trust)}) as running:
        yield running, folder


def test_a_secured_cluster(parley: Parley, secured: tuple[Broker, Path]) -> None:
    broker, folder = secured
    at = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(folder / "broker.properties"))
    allow = ("--add", "--allow-principal", "User:*", "--operation", "Write", "--topic", "orders")
    assert parley("acls", *at, *allow).code == 0
    checked = parley("security", "check", *at, "--json")
    found = json.loads(checked.out)
    assert checked.code == 1
    names = sorted(each["check"] for each in found["findings"])
    assert names == ["endless-sessions", "everyone-may-change", "expiring-certificate", "super-users"]
    assert found["notChecked"] == ["the store and the brokers' files: check the properties file on a broker's machine"]
    assert "marked" not in checked.out


def test_a_user_without_rights_learns_nothing(parley: Parley, secured: tuple[Broker, Path]) -> None:
    broker, folder = secured
    at = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(folder / "alice.properties"))
    refused = parley("security", "check", *at)
    assert (refused.code, refused.out) == (1, "")
    assert "CLUSTER_AUTHORIZATION_FAILED" in refused.err
    assert "`parley acls --add --allow-principal User:NAME --operation OPERATION --cluster`" in refused.err


async def test_an_expired_certificate_of_a_broker_is_a_finding(tmp_path: Path) -> None:
    """The check goes on with the other brokers, and with the other bootstrap addresses."""
    secured = SecuredBrokers(tmp_path)
    clients = {
        "listeners": "SECURE://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "SECURE:SASL_SSL,CLIENTS:SASL_SSL",
        "listener.name.clients.plain.sasl.jaas.config": plain_line("broker", USERS),
    }
    expired = datetime.now(UTC) - timedelta(days=1)
    store = secured.authority.issue("CN=b", "127.0.0.1", expires=expired).write_pem(tmp_path / "expired.pem")
    own = {"listener.name.clients.ssl.keystore.location": str(store)}
    admin = tmp_path / "admin.properties"
    written(admin, secured.client_properties())
    async with secured.running(secured.settings(1) | clients, secured.settings(2) | clients | own) as servers:
        first, second = (bootstrap(each, "CLIENTS") for each in servers)

        async def check(at: str) -> tuple[dict[str, Subject], list[str]]:
            now = datetime.now(UTC)
            subjects, unchecked = await asyncio.to_thread(subjects_of_cluster, at, admin, now)
            return {each.name: each for each in subjects}, [each.text for each in unchecked if each.has_failed]

        for at in (first, f"{second},{first}"):
            subjects, unchecked = await check(at)
            (found,) = findings(subjects["broker 2"])
            assert found.check.name == "expired-certificate"
            assert f"the certificate of {second} expired at " in found.text
            assert "no-authorizer" in {each.check.name for each in findings(subjects["broker 1"])}
            (missing,) = [each for each in unchecked if each.startswith("the settings of broker 2: ")]
            assert "certificate has expired" in missing
        subjects, unchecked = await check(second)
        assert [each.check.name for each in findings(subjects[second])] == ["expired-certificate"]
        assert unchecked == ["the cluster: clients refuse an expired certificate; name another broker"]
