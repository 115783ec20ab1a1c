"""``parley start --from-environment``: variables as settings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig, read_configuration
from parley.broker.config.broker_keys import BrokerKeys
from parley.tools.cli import environment, start
from parley.tools.cli.invocation import CommandError
from tests.tools.conftest import Parley

NAMES = {
    "KAFKA_BROKER_ID": "broker.id",
    "PARLEY_LOG_DIRS": "log.dirs",
    "KAFKA_LISTENER_NAME_IN_SCRAM___SHA___512_SASL_JAAS_CONFIG": "listener.name.in.scram-sha-512.sasl.jaas.config",
    "KAFKA_A__B": "a_b",
    "KAFKA_FOUR____X": "four-.x",
    "KAFKA_lower_Case": "lower.case",
    "KAFKA_A_KAFKA_B": "a.kafka.b",
}


def test_names_of_variables() -> None:
    assert {name: environment.key_of(name) for name in NAMES} == NAMES
    keys = {key for key in (*BrokerKeys.KEYS, *NAMES.values()) if key == key.lower()}
    assert {environment.key_of(environment.variable_of(key)) for key in keys} == keys


@pytest.mark.slow
def test_names_are_those_of_kafkas_image(tmp_path: Path) -> None:
    """Kafka's libraries contain the program that its image runs first."""
    folders = {option: tmp_path / option for option in "DMF"}
    for folder in folders.values():
        folder.mkdir()
    (folders["D"] / "server.properties").touch()
    given = {name: "1" for name in (*NAMES, *environment.OF_JAVA - {"KAFKA_JMX_PORT"}) if name.startswith("KAFKA")}
    libraries = Path(__file__).resolve().parents[2] / ".cache" / "kafka-4.3.1" / "libs"
    options = [word for option, folder in folders.items() for word in (f"-{option}", str(folder))]
    # It then fails on the settings of its log, which Kafka's libraries do not have.
    subprocess.run(
        ["java", "-cp", f"{libraries}/*", "kafka.docker.KafkaDockerWrapper", "setup", *options],
        env={"PATH": os.environ["PATH"], **given}, capture_output=True, check=False,
    )  # fmt: skip
    made = read_configuration(folders["F"] / "server.properties")
    assert made == environment.settings_in(given)


def test_variables_of_kubernetes_services_are_not_settings() -> None:
    of_a_service = {
        "KAFKA_PORT": "tcp://10.0.0.1:9092",
        "KAFKA_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "KAFKA_PORT_9092_TCP_ADDR": "10.0.0.1",
        "PARLEY_SERVICE_HOST": "10.0.0.1",
        "PARLEY_SERVICE_PORT_CLIENTS": "9092",
        "PARLEY_BOOTSTRAP_SERVICE_HOST": "10.0.0.2",
        "PARLEY_BOOTSTRAP_PORT_9092_TCP_PROTO": "tcp",
    }
    others = {"PATH": "/bin", "MY_KAFKA_X": "1", "PARLEY_PROFILE": "mine", "KAFKA_HEAP_OPTS": "-Xmx1g"}
    assert environment.settings_in({**of_a_service, **others, "KAFKA_NUM_PARTITIONS": "3"}) == {"num.partitions": "3"}
    assert environment.settings_in({"KAFKA_ADVERTISED_PORT": "9093"}) == {"advertised.port": "9093"}
    assert environment.without_effect(others) == ["KAFKA_HEAP_OPTS has no effect: it configures Java."]


def test_variables_that_contradict_each_other() -> None:
    with pytest.raises(CommandError, match=r"KAFKA_NUM_PARTITIONS and PARLEY_NUM_PARTITIONS both set num\.partitions"):
        environment.settings_in({"PARLEY_NUM_PARTITIONS": "1", "KAFKA_NUM_PARTITIONS": "2"})
    assert environment.settings_in({"PARLEY_X": "1", "KAFKA_X": "1"}) == {"x": "1"}


def test_which_setting_wins() -> None:
    variables = {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_LOG_RETENTION_MS": "7"}
    made = environment.merged(
        variables,
        {"num.partitions": "2", "log.dirs": "/mine", "coordination.url": "etcd://a:1"},
        {"log.retention.ms": "8"},
        "h",
    )
    assert (made["num.partitions"], made["log.retention.ms"], made["log.dirs"]) == ("3", "8", "/mine")
    assert (made["listeners"], made["metrics.listener"]) == ("PLAINTEXT://0.0.0.0:9092", "0.0.0.0:9464")
    assert "offsets.topic.replication.factor" not in made


def test_without_anything_it_is_a_broker_on_its_own() -> None:
    config = BrokerConfig.from_properties(environment.merged({}, None, {}, "h"))
    assert config.offsets_topic_replication_factor == 1
    assert [(each.host, each.port) for each in (*config.bound, *config.advertised)] == [
        ("0.0.0.0", 9092),
        ("localhost", 9092),
    ]
    assert not config.warnings
    assert "offsets.topic.replication.factor" not in environment.merged(
        {"KAFKA_ZOOKEEPER_CONNECT": "z:1"}, None, {}, "h"
    )
    own = environment.merged({"KAFKA_LISTENERS": "PLAINTEXT://:1", "KAFKA_LOG_DIR": "/d"}, None, {}, "h")
    assert not {"advertised.listeners", "log.dirs"} & own.keys()


def test_settings_contain_the_name_and_ordinal_of_the_pod() -> None:
    def of(value: str, host_name: str = "parley-12.parley.kafka.svc") -> str:
        return environment.resolve_pod_references("k", value, host_name)

    assert of("${pod:ordinal}") == "12"
    assert of("A://${pod:name}.parley:9092,B://h:${pod:ordinal+31000}") == "A://parley-12.parley:9092,B://h:31012"
    assert of("${file:/addresses:${pod:name}} ${env:X} $") == "${file:/addresses:parley-12} ${env:X} $"
    with pytest.raises(CommandError, match=r"k: \$\{pod:ordinal\} needs a host name that ends with a number.* is 3f2a"):
        of("${pod:ordinal}", "3f2a")
    for wrong in ("${pod:ordinal-1}", "${pod:zone}", "${pod:ordinal+x}"):
        with pytest.raises(CommandError, match="is not one of"):
            of(wrong)


def test_unknown_variables_are_errors(parley: Parley, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("my.plugin.key=1\n")
    monkeypatch.setenv("KAFKA_NUM_PARTITION", "3")
    monkeypatch.setenv("PARLEY_SOMETHING_ELSE", "3")
    monkeypatch.setenv(
        "KAFKA_CONTROLLER_QUORUM_VOTERS", "1@a:9093"
    )  # a variable of Kafka's; a warning says that it has no effect
    typed = parley("start", "--from-environment", str(tmp_path / "f"), "--override", "my.other.key=2")
    assert typed.code == 1
    assert typed.err.splitlines() == [
        "Error: KAFKA_NUM_PARTITION would set num.partition, which is not a configuration key. "
        "Did you mean PARLEY_NUM_PARTITIONS?",
        "Error: PARLEY_SOMETHING_ELSE would set something.else, which is not a configuration key.",
    ]


def test_wrong_values_and_wrong_usage(parley: Parley, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "none")
    assert "Error: num.partitions=none is not allowed" in parley("start", "--from-environment").err
    for words in (["--brokers", "3"], ["--port", "1"], ["--restart"]):
        assert "starts a single broker" in parley("start", "--from-environment", *words).err
    assert "cannot be read" in parley("start", "--from-environment", "/no/such/file").err


def test_secrets_come_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret")
    (tmp_path / "more.properties").write_text("rack=r1\n")
    monkeypatch.setattr(environment, "MOUNTED", str(tmp_path / "broker.properties"))
    (tmp_path / "broker.properties").write_text(f"broker.rack=${{file:{tmp_path}/more.properties:rack}}\nbroker.id=4\n")
    monkeypatch.setenv("PARLEY_PASSWORD_ENCODER_SECRET", f"${{dir:{tmp_path}:password}}")
    monkeypatch.setenv("KAFKA_HEAP_OPTS", "-Xmx1g")
    options = start.parser().parse_args(["--from-environment"])
    config = start._configured_by_environment(options)
    assert (config.broker_id, config.broker_rack) == (4, "r1")
    assert config.password_encoder_secret is not None
    assert config.password_encoder_secret.value == "s3cret"
    monkeypatch.setenv("PARLEY_PASSWORD_ENCODER_SECRET", f"${{dir:{tmp_path}:absent}}")
    with pytest.raises(CommandError, match=r"password\.encoder\.secret cannot be resolved.*No such file"):
        start._configured_by_environment(options)
