"""The settings of topics, and the resulting configuration of their logs."""

from __future__ import annotations

import dataclasses

import pytest

from parley.broker.config import BrokerConfig, ConfigError, TopicConfig, log_config
from parley.broker.config.errors import UnknownKey
from parley.broker.config.key_definition import MISSPELLED_MAX, SUGGESTIONS_MAX, closest
from parley.broker.config.topic_config import check_topic
from parley.storage.log_config import LogConfig

BROKER = BrokerConfig.from_properties({})


def test_without_overrides_a_log_has_kafkas_defaults() -> None:
    assert log_config(BROKER, {}) == LogConfig()


def test_the_broker_gives_the_defaults() -> None:
    broker = BrokerConfig.from_properties(
        {
            "log.retention.hours": "1",
            "log.roll.hours": "2",
            "log.segment.bytes": "2000000",
            "log.flush.scheduler.interval.ms": "3",
            "message.max.bytes": "4",
            "log.cleanup.policy": "compact",
            "log.message.timestamp.difference.max.ms": "5",
            "min.insync.replicas": "2",
        }
    )
    assert log_config(broker, {}) == LogConfig(
        retention_ms=3_600_000,
        segment_ms=7_200_000,
        segment_bytes=2_000_000,
        flush_ms=3,
        max_message_bytes=4,
        cleanup_policy=frozenset({"compact"}),
        message_timestamp_before_max_ms=5,
        message_timestamp_after_max_ms=5,
        min_insync_replicas=2,
    )


def test_the_topic_counts_before_the_broker() -> None:
    overrides = {"retention.ms": "-1", "cleanup.policy": "compact,delete", "compression.type": "zstd"}
    assert log_config(BrokerConfig.from_properties({"log.retention.ms": "7"}), overrides) == LogConfig(
        retention_ms=-1, cleanup_policy=frozenset({"compact", "delete"}), compression_type="zstd"
    )


def test_a_dynamic_change_of_the_broker_reaches_its_topics() -> None:
    assert log_config(BROKER.with_dynamic({"log.retention.ms": "9"}, {}), {}).retention_ms == 9


def test_the_old_key_for_timestamps() -> None:
    topic = TopicConfig(BROKER, {"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "6"})
    assert (topic.message_timestamp_before_max_ms, topic.message_timestamp_after_max_ms) == (5, 6)


def test_a_log_has_no_setting_that_topics_lack() -> None:
    assert {field.name for field in dataclasses.fields(LogConfig)} <= {
        key.attribute for key in TopicConfig.KEYS.values()
    }


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"retention.ms": "-2"}, "retention.ms=-2 is not allowed: it must be a whole number of at least -1"),
        ({"retention.ms": ""}, "retention.ms is empty: it must be a whole number"),
        ({"cleanup.policy": "compact,keep"}, "it must be a comma-separated list of compact, delete"),
        ({"compression.type": "GZIP"}, "it must be one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ({"compression.gzip.level": "0"}, "it must be a whole number from 1 to 9, or -1"),
        ({"leader.replication.throttled.replicas": "0:1,1"}, "partition:broker pairs separated by commas, or *"),
        ({"retention.m": "1"}, "retention.m is not a configuration key: did you mean retention.ms?"),
        ({"log.retention.ms": "1"}, "log.retention.ms is not a configuration key"),
        ({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, "it must be at most max.compaction.lag.ms"),
    ],
)
def test_invalid_topic_configs_are_refused(overrides: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_topic(BROKER, overrides)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "overrides",
    [
        {"cleanup.policy": ""},
        {"leader.replication.throttled.replicas": "*"},
        {"leader.replication.throttled.replicas": "0:1,1:1"},
        {"compression.gzip.level": "-1"},
        {"message.format.version": "2.8"},
    ],
)
def test_topic_configs_that_kafka_allows_are_allowed(overrides: dict[str, str]) -> None:
    check_topic(BROKER, overrides)


def test_every_key_and_the_brokers_default_agree() -> None:
    for name, key in TopicConfig.KEYS.items():
        if key.server:
            of_broker = BrokerConfig.KEYS[key.server]
            assert of_broker.type is key.type, name
            assert getattr(BROKER, of_broker.attribute) == key.default, name


def test_only_the_first_unknown_keys_have_a_suggestion() -> None:
    """Looking for similar keys is slow, and a request may have any number of keys."""
    names = [f"retention.m{number}" for number in range(SUGGESTIONS_MAX + 2)] + ["retention.ms" * MISSPELLED_MAX]
    with pytest.raises(ConfigError) as raised:
        check_topic(BrokerConfig.from_properties({}), dict.fromkeys(names, "1"))
    meant = [problem.meant for problem in raised.value.problems if isinstance(problem, UnknownKey)]
    assert meant == ["retention.ms"] * SUGGESTIONS_MAX + [None] * 3
    assert closest(names[-1], ["retention.ms"]) is None
