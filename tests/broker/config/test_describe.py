"""The entries of DescribeConfigs: values, their sources and their synonyms."""

from __future__ import annotations

from parley.broker.config import BrokerConfig, ConfigType
from parley.broker.config.describe import (
    CANNOT_BE_READ,
    ConfigSource,
    Entry,
    Synonym,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from parley.broker.config.sealed_passwords import UnreadablePasswords

BROKER = BrokerConfig.from_properties(
    {
        "broker.id": "1",
        "log.retention.hours": "5",
        "log.cleaner.threads": " 1",
        "my.own.key": "x",
        "ssl.key.password": "p",
    }
).with_dynamic(
    {"log.segment.bytes": "30000000", "log.cleaner.threads": "2"},
    {"log.segment.bytes": "20000000", "log.retention.ms": "600000", "listener.name.plaintext.max.connections": "7"},
)


def by_name(entries: list[Entry]) -> dict[str, Entry]:
    assert len({entry.name for entry in entries}) == len(entries)
    return {entry.name: entry for entry in entries}


def test_a_brokers_value_has_all_its_sources() -> None:
    entry = by_name(describe_broker(BROKER))["log.segment.bytes"]
    assert (entry.value, entry.source, entry.type) == ("20000000", ConfigSource.PER_BROKER, ConfigType.INT)
    assert not entry.read_only
    assert not entry.is_default
    assert entry.synonyms == (
        Synonym("log.segment.bytes", "20000000", ConfigSource.PER_BROKER),
        Synonym("log.segment.bytes", "30000000", ConfigSource.CLUSTER_DEFAULT),
        Synonym("log.segment.bytes", "1073741824", ConfigSource.DEFAULT),
    )


def test_a_key_has_the_keys_it_takes_over_from_as_synonyms() -> None:
    entries = by_name(describe_broker(BROKER))
    entry = entries["log.retention.ms"]
    assert (entry.value, entry.source) == ("600000", ConfigSource.PER_BROKER)
    assert entry.synonyms == (
        Synonym("log.retention.ms", "600000", ConfigSource.PER_BROKER),
        Synonym("log.retention.hours", "5", ConfigSource.STATIC),
        Synonym("log.retention.hours", "168", ConfigSource.DEFAULT),
    )
    assert (entries["log.retention.hours"].value, entries["log.retention.hours"].read_only) == ("5", True)
    assert (entries["log.retention.minutes"].value, entries["log.retention.minutes"].synonyms) == (None, ())


def test_values_are_written_as_kafka_writes_them() -> None:
    entries = by_name(describe_broker(BROKER))
    assert entries["log.cleaner.io.max.bytes.per.second"].value == "1.7976931348623157E308"
    assert entries["auto.create.topics.enable"].value == "true"
    assert entries["ssl.enabled.protocols"].value == "TLSv1.2,TLSv1.3"
    static = by_name(describe_broker(BrokerConfig.from_properties({"log.cleaner.threads": " 3 "})))
    assert static["log.cleaner.threads"].value == "3"


def test_secrets_and_unknown_keys_are_not_shown() -> None:
    entries = by_name(describe_broker(BROKER))
    for name in ("ssl.key.password", "my.own.key"):
        assert entries[name].is_sensitive
        assert entries[name].value is None
        assert entries[name].source is ConfigSource.STATIC
        assert [synonym.value for synonym in entries[name].synonyms] == [None]
    assert entries["my.own.key"].read_only
    assert entries["my.own.key"].type is ConfigType.UNKNOWN


def test_a_listeners_own_value_falls_back_to_the_key() -> None:
    entry = by_name(describe_broker(BROKER))["listener.name.plaintext.max.connections"]
    assert entry.value == "7"
    assert entry.synonyms == (
        Synonym("listener.name.plaintext.max.connections", "7", ConfigSource.PER_BROKER),
        Synonym("max.connections", "2147483647", ConfigSource.DEFAULT),
    )


def test_a_changed_key_does_not_outrank_a_listeners_own_value() -> None:
    name = "listener.name.plaintext.sasl.enabled.mechanisms"
    config = BrokerConfig.from_properties({name: "PLAIN", "sasl.enabled.mechanisms": "GSSAPI"})
    changed = config.with_dynamic({}, {"sasl.enabled.mechanisms": "OAUTHBEARER"})
    entry = by_name(describe_broker(changed))[name]
    assert (entry.value, entry.source) == ("PLAIN", ConfigSource.STATIC)
    assert entry.synonyms[0] == Synonym(name, "PLAIN", ConfigSource.STATIC)


def test_a_key_that_is_not_set_has_the_default_as_source() -> None:
    entry = by_name(describe_broker(BrokerConfig.from_properties({"log.retention.hours": "5"})))["log.retention.ms"]
    assert (entry.value, entry.source, entry.synonyms) == (None, ConfigSource.DEFAULT, ())


def test_the_cluster_default_has_its_own_entries() -> None:
    entries = by_name(describe_cluster_default(BROKER))
    assert set(entries) == {"log.segment.bytes", "log.cleaner.threads"}
    assert entries["log.cleaner.threads"].synonyms == (
        Synonym("log.cleaner.threads", "2", ConfigSource.CLUSTER_DEFAULT),
    )


def test_passwords_that_cannot_be_decrypted_are_described() -> None:
    own, of_all = "listener.name.plaintext.ssl.key.password", "ssl.key.password"
    unreadable = UnreadablePasswords(frozenset({of_all, own}), frozenset({own}))
    entries = by_name(describe_broker(BROKER, unreadable))
    assert (entries[own].value, entries[own].source) == (None, ConfigSource.PER_BROKER)
    assert (entries[of_all].value, entries[of_all].source) == (None, ConfigSource.CLUSTER_DEFAULT)
    assert [each.source for each in entries[of_all].synonyms] == [ConfigSource.CLUSTER_DEFAULT, ConfigSource.STATIC]
    for name in (own, of_all):
        assert entries[name].is_sensitive
        assert f"{name} {CANNOT_BE_READ}" in entries[name].documentation
    defaults = by_name(describe_cluster_default(BROKER, unreadable))
    assert {name for name, entry in defaults.items() if CANNOT_BE_READ in entry.documentation} == {own, of_all}
    assert CANNOT_BE_READ not in str(describe_broker(BROKER))


def test_a_topics_value_goes_back_to_the_broker() -> None:
    entries = by_name(describe_topic(BROKER, {"retention.ms": "1000"}))
    entry = entries["retention.ms"]
    assert (entry.value, entry.source, entry.read_only) == ("1000", ConfigSource.TOPIC, False)
    assert entry.synonyms == (
        Synonym("retention.ms", "1000", ConfigSource.TOPIC),
        Synonym("log.retention.ms", "600000", ConfigSource.PER_BROKER),
        Synonym("log.retention.hours", "5", ConfigSource.STATIC),
        Synonym("log.retention.hours", "168", ConfigSource.DEFAULT),
    )
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == ("20000000", ConfigSource.PER_BROKER)
    assert entries["remote.storage.enable"].synonyms == ()
    assert entries["remote.storage.enable"].is_default


def test_every_entry_is_documented() -> None:
    for entry in [*describe_broker(BROKER), *describe_topic(BROKER, {})]:
        assert entry.documentation or entry.name == "my.own.key"


def test_a_key_of_a_group_has_the_brokers_default_or_its_own() -> None:
    entries = by_name(describe_group(BROKER, {"share.auto.offset.reset": "earliest"}))
    assert entries["share.auto.offset.reset"].synonyms == (
        Synonym("share.auto.offset.reset", "earliest", ConfigSource.GROUP),
        Synonym("share.auto.offset.reset", "latest", ConfigSource.DEFAULT),
    )
    (of_broker,) = entries["consumer.session.timeout.ms"].synonyms
    assert (of_broker.name, of_broker.source) == ("group.consumer.session.timeout.ms", ConfigSource.DEFAULT)
