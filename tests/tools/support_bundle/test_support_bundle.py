"""``parley support-bundle``: the content of the archive, which must contain no secret, wherever it was planted."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from parley import Broker
from tests.support.ports import free_port
from tests.system.running import BrokerProcess
from tests.tools.conftest import Parley

pytestmark = pytest.mark.slow

PLANTS = {
    "sasl.jaas.config": "plant-of-jaas-1",
    "user": "plant'of$a\\user-2",
    "ssl.keystore.password": 'plant "with quotes" 3',
    "password.encoder.secret": "plänt-of-the-encoder-4",
    "delegation.token.secret.key": "plant/of+tokens=5",
    "zookeeper.ssl.keystore.password": "plant-of-zookeeper-6",
    "listener.name.out.ssl.key.password": "plant-of-a-listener-7",
    "ssl.keystore.pasword": "plant-of-a-misspelled-key-8",
    "provided": "plant-of-a-provider-9",
    "client": "plant-of-the-client-10",
    "metrics": "plant-of-metrics-11",
    "option": "plant-on-a-command-line-12",
    "foreign": "plant-of-another-program-13",
    "key": "UExBTlRfT0ZfQV9LRVlfVEhBVF9JU19MT05HMTQ=",
}


def spellings(plant: str) -> Iterator[str]:
    yield plant
    yield json.dumps(plant)[1:-1]
    yield repr(plant)[1:-1]
    yield quote(plant)
    yield quote(plant, safe="")
    yield quote_plus(plant)
    yield base64.b64encode(plant.encode()).decode()


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            assert member.isfile()
            assert ".." not in member.name
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read().decode()
    return found


def assert_clean(files: dict[str, str]) -> None:
    for name, text in files.items():
        for what, plant in PLANTS.items():
            for spelt in spellings(plant):
                assert spelt not in text, f"{what} is in {name}"
                assert spelt not in name


def jaas(password: str, **users: str) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"')

    options = "".join(f' user_{name}="{escaped(each)}"' for name, each in users.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return f'{module} required username="admin" password="{password}"{options};'


def properties_file(path: Path, settings: dict[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in settings.items()))
    return path


def log_file(path: Path) -> Path:
    lines = ["INFO the broker has started", "WARN disk is slow"]
    for name, plant in PLANTS.items():
        if name not in ("foreign", "key", "option"):  # it is in no configuration
            lines += [f"DEBUG here it is: <{spelt}>" for spelt in spellings(plant)]
    lines += [
        f"DEBUG connecting to https://someone:{PLANTS['foreign']}@elsewhere/",
        f"DEBUG db.password={PLANTS['foreign']}, retries=3",
        f"DEBUG Authorization: Basic {base64.b64encode(('u:' + PLANTS['foreign']).encode()).decode()}",
        f"-----BEGIN PRIVATE KEY-----\n{PLANTS['key']}\n-----END PRIVATE KEY-----",
        "ERROR the last line",
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_no_planted_secret_is_in_the_archive(parley: Parley, tmp_path: Path) -> None:
    """The secrets are those of a running broker with logins and a password for metrics, its file, a client's file, a
    log, and another process."""
    port, metrics, taken = free_port(), free_port(), free_port()
    of_broker = jaas(PLANTS["sasl.jaas.config"], admin=PLANTS["sasl.jaas.config"], bob=PLANTS["user"])
    (tmp_path / "secrets").write_text(f"of-keys={PLANTS['provided']}\n")
    file = properties_file(
        tmp_path / "broker.properties",
        {
            "broker.id": "1",
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},OUT://127.0.0.1:{taken}",
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,OUT:PLAINTEXT",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": of_broker,
            "log.dirs": str(tmp_path / "data"),
            "metrics.listener": f"127.0.0.1:{metrics}",
            "config.providers": "file",
            "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
            "ssl.key.password": "${file:" + str(tmp_path / "secrets") + ":of-keys}",
            "unknown.by.reference": "${file:" + str(tmp_path / "secrets") + ":of-keys}",
            "log.retention.hours": "37",
            **{
                name: PLANTS[name]
                for name in (
                    "ssl.keystore.password",
                    "password.encoder.secret",
                    "delegation.token.secret.key",
                    "zookeeper.ssl.keystore.password",
                    "listener.name.out.ssl.key.password",
                    "ssl.keystore.pasword",
                )
            },
        },
    )
    client = properties_file(
        tmp_path / "client.properties",
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": jaas(PLANTS["sasl.jaas.config"]),
            "ssl.truststore.password": PLANTS["client"],
        },
    )
    archive = tmp_path / "bundle.tar.gz"
    settings = {
        "broker.id": "1",
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": of_broker,
        "password.encoder.secret": PLANTS["password.encoder.secret"],
        "metrics.listener": f"127.0.0.1:{metrics}",
    }
    program = f"import socket; s = socket.create_server(('127.0.0.1', {taken})); print('ready', flush=True); input()"
    with (
        subprocess.Popen(
            [sys.executable, "-c", program, "--password", PLANTS["option"]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as other,
        Broker(settings),
    ):  # fmt: skip
        assert other.stdout is not None
        other.stdout.readline()
        typed = parley(
            "support-bundle", str(file), "--bootstrap-server", f"127.0.0.1:{port}", "--command-config", str(client),
            "--metrics", f"1=http://scraper:{PLANTS['metrics']}@127.0.0.1:{metrics}",
            "--log", str(log_file(tmp_path / "parley.log")), "--to", str(archive),
        )  # fmt: skip
        other.kill()
    assert typed.code == 0, typed.err
    files = unpacked(archive)
    assert_clean({**files, "standard output": typed.out, "standard error": typed.err})
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    shown = json.loads(files["configuration.json"])
    assert shown["log.retention.hours"] == "37"
    assert shown["unknown.by.reference"].startswith("${file:")
    assert shown["ssl.keystore.pasword"] == "[hidden]"
    assert "port-taken" in files["machine/findings.txt"]
    assert f"process {other.pid} (" in files["machine/findings.txt"]
    assert json.loads(files["cluster/facts.json"])["brokers"][0]["settings"]["sasl.enabled.mechanisms"] == "PLAIN"
    assert files["cluster/metrics-1.prom"].count("parley_") > 50
    log = files["logs/parley.log"].splitlines()
    assert log[:2] == ["INFO the broker has started", "WARN disk is slow"]
    assert log[-1] == "ERROR the last line"
    assert "retries=3" in files["logs/parley.log"]


def test_the_log_of_a_running_broker_is_found_and_its_topics_are_described(parley: Parley, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"broker.id": "1"})
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for done in admin.create_topics([NewTopic("t", 1, 1, config={"retention.ms": "77000"})]).values():
            done.result(60)
        file = properties_file(
            tmp_path / "own.properties",
            {"listeners": f"PLAINTEXT://127.0.0.1:{broker.port}", "log.dirs": str(broker.data), "broker.id": "1"},
        )
        typed = parley(
            "support-bundle", str(file), "--bootstrap-server", broker.bootstrap_servers, "--to", str(tmp_path / "b.tgz")
        )
    finally:
        broker.kill()
    assert typed.code == 0, typed.err
    files = unpacked(tmp_path / "b.tgz")
    (log,) = [text for name, text in files.items() if name.startswith("logs/")]
    assert "broker started" in log
    assert json.loads(files["topics.json"]) == {"t": {"retention.ms": "77000"}}
    assert json.loads(files["versions.json"])["packages"]["typer"]


def test_the_bundle_lists_missing_parts(parley: Parley, tmp_path: Path) -> None:
    """The broker does not start, and its cluster does not respond. An existing archive is never replaced."""
    file = properties_file(tmp_path / "broker.properties", {"min.insync.replicas": "0"})
    words = ("support-bundle", str(file), "--bootstrap-server", f"127.0.0.1:{free_port()}",
             "--log", str(tmp_path / "none.log"), "--to", str(tmp_path / "b.tgz"))  # fmt: skip
    typed = parley(*words)
    assert (typed.code, typed.out) == (0, f"{tmp_path / 'b.tgz'}\n")
    files = unpacked(tmp_path / "b.tgz")
    assert "config-invalid" in files["machine/findings.txt"]
    for text in (files["README.txt"], typed.err):
        assert "the cluster: no broker responds" in text
        assert "none.log: No such file" in text
        assert "the broker's log: the broker does not run here" in text
    before = (tmp_path / "b.tgz").read_bytes()
    assert "already exists" in parley(*words).err
    assert (tmp_path / "b.tgz").read_bytes() == before


def test_only_the_end_of_a_long_log_is_taken(parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.tools.support_bundle.contents.LOG_BYTES", 25)
    (tmp_path / "a.log").write_text("the first line\nthe second line\nthe last\n")
    file = properties_file(tmp_path / "broker.properties", {"min.insync.replicas": "0"})
    typed = parley("support-bundle", str(file), "--log", str(tmp_path / "a.log"), "--to", str(tmp_path / "b.tgz"))
    assert typed.code == 0
    assert unpacked(tmp_path / "b.tgz")["logs/a.log"] == "the last\n"


def test_wrong_usage(parley: Parley) -> None:
    typed = parley("support-bundle", "--to", "x")
    assert typed.code == 1
    assert "Name a broker's properties file" in typed.err
