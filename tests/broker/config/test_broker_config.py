"""A broker's configuration as a whole: defaults, precedence, layers, listeners, errors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from parley.broker.config import BrokerConfig, ConfigError, ListenerAddress, Password

DAY_MS = 24 * 3600 * 1000


def config(**given: str) -> BrokerConfig:
    return BrokerConfig.from_properties({name.replace("_", "."): value for name, value in given.items()})


def complaints(given: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.from_properties(given)
    return str(refused.value).splitlines()


def test_defaults_are_kafkas() -> None:
    broker = BrokerConfig.from_properties({})
    assert broker.log_segment_bytes == 1 << 30
    assert broker.log_retention_ms == 7 * DAY_MS
    assert broker.num_partitions == 1
    assert broker.auto_create_topics_enable is True
    assert broker.data_dirs == ("/tmp/kafka-logs",)
    assert broker.broker_id == broker.node_id == -1
    assert broker.bound == (ListenerAddress("PLAINTEXT", "PLAINTEXT", "", 9092),)
    assert broker.warnings == ()


def test_values_are_typed() -> None:
    broker = config(num_partitions="3", log_dirs="/a, /b", ssl_key_password="pw")
    assert broker.num_partitions == 3
    assert broker.data_dirs == ("/a", "/b")
    assert broker.ssl_key_password == Password("pw")
    assert "pw" not in repr(broker)


def test_nothing_can_be_set() -> None:
    broker = BrokerConfig.from_properties({})
    with pytest.raises(AttributeError, match="is immutable"):
        broker.num_partitions = 3
    with pytest.raises(AttributeError, match="is immutable"):
        del broker.num_partitions


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 7 * DAY_MS),
        ({"log.retention.hours": "24"}, DAY_MS),
        ({"log.retention.hours": "24", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.hours": "24", "log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.ms": "-1", "log.retention.hours": "24"}, -1),
        ({"log.retention.minutes": "-1"}, -1),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finer_unit_of_retention_counts(given: dict[str, str], retention_ms: int) -> None:
    assert BrokerConfig.from_properties(given).log_retention_ms == retention_ms


def test_rolling_and_flushing_take_over_from_coarser_keys() -> None:
    broker = config(log_roll_hours="2", log_roll_jitter_hours="1", log_flush_scheduler_interval_ms="500")
    assert broker.log_roll_ms == 7_200_000
    assert broker.log_roll_jitter_ms == 3_600_000
    assert broker.log_flush_interval_ms == 500
    assert config(log_roll_hours="2", log_roll_ms="5").log_roll_ms == 5


def test_the_old_key_for_timestamps_counts_if_the_new_ones_are_not_given() -> None:
    broker = config(log_message_timestamp_difference_max_ms="10")
    assert (broker.log_message_timestamp_before_max_ms, broker.log_message_timestamp_after_max_ms) == (10, 10)
    broker = config(log_message_timestamp_difference_max_ms="10", log_message_timestamp_after_max_ms="20")
    assert (broker.log_message_timestamp_before_max_ms, broker.log_message_timestamp_after_max_ms) == (10, 20)
    assert config().log_message_timestamp_after_max_ms == 3_600_000


@pytest.mark.parametrize("name", ["broker.id", "node.id"])
def test_either_name_of_the_id_will_do(name: str) -> None:
    broker = BrokerConfig.from_properties({name: "7"})
    assert (broker.broker_id, broker.node_id) == (7, 7)


def test_the_session_timeout_goes_by_the_key_that_is_given() -> None:
    assert config().session_timeout_ms == 9000
    assert config(zookeeper_session_timeout_ms="7000").session_timeout_ms == 7000
    both = config(zookeeper_session_timeout_ms="7000", coordination_session_timeout_ms="8000")
    assert both.session_timeout_ms == 8000


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ("127.0.0.1:9100", ("127.0.0.1", 9100)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:1", ("localhost", 1)),
        ("http://a:1", ("a", 1)),
        ("https://[::]:1", ("::", 1)),
    ],
)
def test_the_metrics_listener_is_a_host_and_a_port(text: str, address: object) -> None:
    assert config(metrics_listener=text).metrics_address == address
    assert config(metrics_listener=text).metrics_is_tls is text.startswith("https:")


# ---- complaints ---------------------------------------------------------------------------------------------------


def test_all_bad_values_are_reported_at_once() -> None:
    bad = {"num.partitions": "0", "log.segment.bytes": "big", "delete.topic.enable": "maybe", "broker.id": "1"}
    assert complaints(bad) == [
        "num.partitions=0 is not allowed: it must be a whole number of at least 1",
        "log.segment.bytes=big is not allowed: it must be a whole number of at least 1048576",
        "delete.topic.enable=maybe is not allowed: it must be true or false",
    ]
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.from_properties(bad)
    first = refused.value.problems[0]
    assert (first.key, first.value) == ("num.partitions", "0")


def test_an_id_above_the_reserved_ones_is_refused_with_the_limit_and_the_remedies() -> None:
    """As in Kafka before 4.0, which has no limit either if the cluster assigns no ids."""
    (complaint,) = complaints({"broker.id": "1001"})
    assert "at most 1000 (reserved.broker.max.id)" in complaint
    assert "leave out broker.id: meta.properties in each log directory contains it" in complaint
    assert BrokerConfig.from_properties({"broker.id": "1001", "broker.id.generation.enable": "false"}).broker_id == 1001


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"broker.id": "1", "node.id": "2"}, "node.id"),
        ({"broker.id": "1001"}, "broker.id"),
        ({"broker.id.generation.enable": "false"}, "broker.id"),
        ({"log.dirs": "/a,,/b"}, "log.dirs"),
        ({"log.dirs": "/a", "cordoned.log.dirs": "/b"}, "cordoned.log.dirs"),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "inter.broker.listener.name",
        ),
        ({"log.retention.ms": "0"}, "log.retention.ms"),
        (
            {"log.cleaner.min.compaction.lag.ms": "2", "log.cleaner.max.compaction.lag.ms": "1"},
            "log.cleaner.min.compaction.lag.ms",
        ),
        ({"group.min.session.timeout.ms": "2", "group.max.session.timeout.ms": "1"}, "group.min.session.timeout.ms"),
        ({"replica.fetch.wait.max.ms": "40000"}, "replica.fetch.wait.max.ms"),
        ({"replica.socket.timeout.ms": "100"}, "replica.fetch.wait.max.ms"),
        ({"socket.connection.setup.timeout.ms": "40000"}, "socket.connection.setup.timeout.ms"),
        (
            {"connections.max.idle.ms": "50", "connection.failed.authentication.delay.ms": "50"},
            "connection.failed.authentication.delay.ms",
        ),
        ({"max.connections.per.ip": "0"}, "max.connections.per.ip"),
        ({"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "a:0"}, "max.connections.per.ip"),
        ({"max.connections": "0"}, "max.connections"),
        ({"listener.name.plaintext.max.connections": "0"}, "max.connections"),
        ({"max.connection.creation.rate": "0"}, "max.connection.creation.rate"),
        ({"queued.max.request.bytes": "1000"}, "queued.max.request.bytes"),
        ({"super.users": "User:admin;alice"}, "super.users"),
        ({"listeners": "PLAINTEXT://:9092,SSL://:9093"}, "ssl.keystore.location"),
        (
            {
                "listeners": "SSL://:9093,X://:1",
                "listener.security.protocol.map": "X:SSL,SSL:SSL",
                "security.inter.broker.protocol": "SSL",
                "listener.name.x.ssl.keystore.location": "x.pem",
            },
            "ssl.keystore.location",
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://:9093",
                "security.inter.broker.protocol": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
            },
            "sasl.mechanism.inter.broker.protocol",
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://:9093",
                "security.inter.broker.protocol": "SASL_PLAINTEXT",
                "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
            },
            "sasl.mechanism.inter.broker.protocol",
        ),
        ({"group.share.max.share.sessions": "199"}, "group.share.max.share.sessions"),
        ({"metrics.listener": "9100"}, "metrics.listener"),
        ({"max.connections.per.ip.overrides": "host"}, "max.connections.per.ip.overrides"),
        ({"listener.name.plaintext.max.connections": "-3"}, "listener.name.plaintext.max.connections"),
    ],
)
def test_values_that_contradict_each_other(given: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.from_properties(given)
    assert key in {problem.key for problem in refused.value.problems}


def test_a_refused_configuration_names_misspelled_keys() -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.from_properties({"num.partitions": "x", "ssl.keystore.locaton": "marked", "wholly.unknown": "y"})
    assert str(refused.value).splitlines()[1:] == [
        "ssl.keystore.locaton is not a configuration key: did you mean ssl.keystore.location?"
    ]


def test_a_misspelled_mechanism_is_named() -> None:
    listener = {"listeners": "SASL_PLAINTEXT://:9093", "security.inter.broker.protocol": "SASL_PLAINTEXT"}
    used = {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512", "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA512"}
    with pytest.raises(ConfigError, match=r"are PLAIN, SCRAM-SHA512. Did you mean SCRAM-SHA-512 by SCRAM-SHA512\?"):
        BrokerConfig.from_properties(listener | used)
    with pytest.raises(ConfigError, match=r"are SCRAM-SHA-256$"):
        BrokerConfig.from_properties(listener | used | {"sasl.enabled.mechanisms": "SCRAM-SHA-256"})


def test_limits_that_are_off_satisfy_the_rules() -> None:
    assert config(connections_max_idle_ms="-1").connections_max_idle_ms == -1
    assert config(max_connections_per_ip="0", max_connections_per_ip_overrides="a:1").max_connections_per_ip == 0
    assert BrokerConfig.from_properties({"node.id": "3000"}).broker_id == 3000


def test_a_secret_is_not_in_a_complaint() -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.from_properties({"num.partitions": "x", "ssl.key.password": "hunter2"})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("log.retentoin.ms", "log.retentoin.ms is not a configuration key: did you mean log.retention.ms?"),
        ("something.else.entirely", "something.else.entirely is not a configuration key"),
        (
            "controller.quorum.voters",
            "controller.quorum.voters has no effect: Parley has no metadata quorum: the store of coordination.url "
            "coordinates the cluster.",
        ),
        (
            "num.io.threads",
            "num.io.threads has no effect: A broker is served by one event loop. To use more cores, run more brokers.",
        ),
        ("port", "port is deprecated: use listeners"),
    ],
)
def test_keys_without_effect_are_a_warning(name: str, warning: str) -> None:
    assert BrokerConfig.from_properties({name: "9"}).warnings == (warning,)


# ---- listeners ----------------------------------------------------------------------------------------------------


def test_several_listeners() -> None:
    broker = config(
        listeners="INTERNAL://10.0.0.1:9092, External://:9093,PLAINTEXT://[::1]:9094",
        listener_security_protocol_map="internal:PLAINTEXT,EXTERNAL:plaintext,PLAINTEXT:PLAINTEXT",
        advertised_listeners="EXTERNAL://broker.example.org:19093,INTERNAL://10.0.0.1:9092",
        inter_broker_listener_name="internal",
    )
    assert broker.bound == (
        ListenerAddress("INTERNAL", "PLAINTEXT", "10.0.0.1", 9092),
        ListenerAddress("EXTERNAL", "PLAINTEXT", "", 9093),
        ListenerAddress("PLAINTEXT", "PLAINTEXT", "::1", 9094),
    )
    assert broker.advertised == (
        ListenerAddress("EXTERNAL", "PLAINTEXT", "broker.example.org", 19093),
        ListenerAddress("INTERNAL", "PLAINTEXT", "10.0.0.1", 9092),
    )
    assert broker.inter_broker_listener == "INTERNAL"
    assert [str(listener) for listener in broker.bound][2] == "PLAINTEXT://[::1]:9094"


def test_shared_addresses_belong_to_listeners() -> None:
    broker = config(listeners="PLAINTEXT://10.0.0.1:9092", bootstrap_listeners="plaintext://10.0.0.1:9000")
    assert broker.bootstrap == (ListenerAddress("PLAINTEXT", "PLAINTEXT", "10.0.0.1", 9000),)
    assert broker.advertised == broker.bound
    assert config().bootstrap == ()
    for wrong, reason in (
        ("SSL://:9000", "among the names in listeners: PLAINTEXT"),
        ("PLAINTEXT://:0", "with a port"),
        ("PLAINTEXT://:9092", "different ports"),
        ("PLAINTEXT://:9000,PLAINTEXT://:9001", "different names"),
        ("9000", "name://host:port"),
        ("PLAINTEXT://:70000", "from 0 to 65535"),
    ):
        with pytest.raises(ConfigError, match=rf"bootstrap\.listeners=.*{reason}"):
            config(bootstrap_listeners=wrong)
    with pytest.raises(ConfigError, match=r"advertised\.listeners=.*this broker alone"):
        config(bootstrap_listeners="PLAINTEXT://h:9000", advertised_listeners="PLAINTEXT://h:9000")


def test_advertised_addresses_are_completed_when_they_are_known() -> None:
    broker = config(listeners="PLAINTEXT://:0")
    assert broker.advertised_at({"PLAINTEXT": 40001}, "host1") == (
        ListenerAddress("PLAINTEXT", "PLAINTEXT", "host1", 40001),
    )
    broker = config(listeners="PLAINTEXT://:0", advertised_listeners="PLAINTEXT://proxy:9092")
    assert broker.advertised_at({"PLAINTEXT": 40001}, "host1") == (
        ListenerAddress("PLAINTEXT", "PLAINTEXT", "proxy", 9092),
    )


def test_keys_from_before_listeners() -> None:
    broker = config(host_name="10.1.1.1", port="9999", advertised_host_name="outside", advertised_port="1234")
    assert broker.bound == (ListenerAddress("PLAINTEXT", "PLAINTEXT", "10.1.1.1", 9999),)
    assert broker.advertised == (ListenerAddress("PLAINTEXT", "PLAINTEXT", "outside", 1234),)
    broker = config(listeners="PLAINTEXT://:1", host_name="ignored", port="2", advertised_port="3")
    assert broker.bound == broker.advertised == (ListenerAddress("PLAINTEXT", "PLAINTEXT", "", 1),)


def test_kafkas_own_server_properties_starts_a_broker() -> None:
    broker = BrokerConfig.from_properties(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": "localhost:9093",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "inter.broker.listener.name": "PLAINTEXT",
            "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
            "num.network.threads": "3",
            "num.io.threads": "8",
            "socket.send.buffer.bytes": "102400",
            "socket.receive.buffer.bytes": "102400",
            "socket.request.max.bytes": "104857600",
            "log.dirs": "/tmp/kraft-combined-logs",
            "num.partitions": "1",
            "num.recovery.threads.per.data.dir": "1",
            "offsets.topic.replication.factor": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "log.retention.hours": "168",
            "log.segment.bytes": "1073741824",
            "log.retention.check.interval.ms": "300000",
        }
    )
    assert broker.bound == (ListenerAddress("PLAINTEXT", "PLAINTEXT", "", 9092),)
    assert broker.advertised == (ListenerAddress("PLAINTEXT", "PLAINTEXT", "localhost", 9092),)
    assert not any("is not a configuration key" in warning for warning in broker.warnings)


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"listeners": "9092"}, "name://host:port, separated by commas"),
        ({"listeners": "PLAINTEXT://host"}, "name://host:port, separated by commas"),
        ({"listeners": "PLAINTEXT://:65536"}, "name://host:port, separated by commas"),
        ({"listeners": "PLAINTEXT://:-1"}, "name://host:port, separated by commas"),
        ({"listeners": ""}, "at least one of name://host:port, separated by commas"),
        ({"listeners": "CONTROLLER://:1", "controller.listener.names": "controller"}, "at least one of"),
        ({"listeners": "MINE://:9092"}, "has a protocol in listener.security.protocol.map"),
        ({"listeners": "PLAINTEXT://:1,plaintext://:2"}, "different names"),
        (
            {"listeners": "A://:1,B://:1", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"},
            "different ports",
        ),
        ({"listener.security.protocol.map": "A:TELNET"}, "protocols are PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"listener.security.protocol.map": "A"}, "name:protocol"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "an address that clients can connect to, which 0.0.0.0 is not"),
        ({"advertised.listeners": "PLAINTEXT://[::]:9092"}, "an address that clients can connect to, which :: is not"),
        ({"advertised.listeners": "SSL://host:1"}, "among the names in listeners: PLAINTEXT"),
        ({"inter.broker.listener.name": "OTHER"}, "the name of one of the listeners"),
        ({"security.inter.broker.protocol": "SSL"}, "the protocol of one of the listeners"),
        (
            {"listeners": "SASL_SSL://:9093", "security.inter.broker.protocol": "PLAINTEXT"},
            "the protocol of one of the listeners (SASL_SSL is SASL_SSL); or leave it out",
        ),
    ],
)
def test_illegal_listeners(given: dict[str, str], allowed: str) -> None:
    (complaint,) = complaints(given)
    assert allowed in complaint


def test_one_port_for_ipv4_and_ipv6() -> None:
    broker = config(
        listeners="A://127.0.0.1:1,B://[::1]:1",
        listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT",
        advertised_listeners="A://a:1,B://b:1",
    )
    assert [listener.port for listener in broker.bound] == [1, 1]


def test_a_listener_may_have_values_of_its_own() -> None:
    broker = BrokerConfig.from_properties(
        {
            "max.connections": "10",
            "listener.name.plaintext.max.connections": "3",
            "listener.name.x.max.connections": "4",
        }
    )
    assert broker.max_connections == 10
    assert broker.for_listener("PLAINTEXT").max_connections == 3
    assert broker.for_listener("OTHER") is broker


def test_the_mechanisms_of_a_listener_do_not_concern_the_brokers_listener() -> None:
    """Brokers log in on their own listener, which inherits its mechanisms."""
    broker = BrokerConfig.from_properties(
        {
            "listeners": "SASL_PLAINTEXT://:9092,CLIENTS://:9093",
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.clients.sasl.enabled.mechanisms": "OAUTHBEARER",
        }
    )
    assert broker.for_listener("CLIENTS").sasl_enabled_mechanisms == ("OAUTHBEARER",)
    assert broker.for_listener("SASL_PLAINTEXT").sasl_enabled_mechanisms == ("SCRAM-SHA-512",)
    assert broker.warnings == ()


# ---- layers -------------------------------------------------------------------------------------------------------


def test_a_more_specific_layer_wins() -> None:
    static = config(log_segment_bytes="10000000", log_cleaner_threads="2", num_partitions="4")
    broker = static.with_dynamic(
        {"log.segment.bytes": "20000000", "log.cleaner.threads": "3"}, {"log.segment.bytes": "30000000"}
    )
    assert (broker.log_segment_bytes, broker.log_cleaner_threads, broker.num_partitions) == (30_000_000, 3, 4)
    assert static.log_segment_bytes == 10_000_000
    back = broker.with_dynamic({}, {})
    assert (back.log_segment_bytes, back.log_cleaner_threads) == (10_000_000, 2)


def test_a_dynamic_retention_counts_before_a_static_one_in_hours() -> None:
    broker = config(log_retention_hours="5").with_dynamic({"log.retention.ms": "7"}, {})
    assert broker.log_retention_ms == 7


# ---- all keys -----------------------------------------------------------------------------------------------------


def test_every_key_is_whole() -> None:
    key: Any
    for name, key in BrokerConfig.KEYS.items():
        assert key.doc.endswith("."), name
        assert "  " not in key.doc, name
        assert not key.ignored or key.ignored.endswith("."), name
        text = key.text(key.default)
        if text is not None:
            assert key.parse(text) == key.default, name


def test_every_key_with_a_unit_in_its_name_has_that_unit() -> None:
    units = {"ms": "ms", "bytes": "bytes", "seconds": "s"}
    for name, key in BrokerConfig.KEYS.items():
        last = name.rpartition(".")[2]
        assert last not in units or key.unit == units[last], name


def test_importing_the_configuration_imports_little() -> None:
    heavy = {
        "asyncio",
        "difflib",
        "email",
        "http",
        "logging",
        "prometheus_client",
        "parley.protocol",
        "parley.storage",
        "typer",
    }
    code = f"import parley.broker.config, sys; print(*({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_texts_of_a_listener_and_a_mechanism() -> None:
    config = BrokerConfig.from_properties(
        {
            "ssl.key.password": "a",
            "listener.name.plaintext.ssl.key.password": "b",
            "sasl.jaas.config": "of no listener",
            "listener.name.plaintext.scram-sha-256.sasl.jaas.config": "c",
            "listener.name.plaintext.plain.sasl.jaas.config": "d",
            "listener.name.other.plain.sasl.jaas.config": "e",
        }
    )
    scram = config.texts_for_listener("PLAINTEXT", "SCRAM-SHA-256")
    assert scram["ssl.key.password"] == "b"
    assert scram["sasl.jaas.config"] == "c"
    assert "sasl.jaas.config" not in config.texts_for_listener("PLAINTEXT", "OAUTHBEARER")
    other = config.texts_for_listener("other", "PLAIN")
    assert (other["ssl.key.password"], other["sasl.jaas.config"]) == ("a", "e")
