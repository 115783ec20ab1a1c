"""The source's options have the meaning that they have in Spark's Kafka source. The error for a wrong option says what
to write."""

from __future__ import annotations

import pytest

from parley.pipeline.client.cluster import Isolation, TopicPartition
from parley.pipeline.format.options import (
    AtTime,
    Extreme,
    OptionError,
    SourceOptions,
    Specific,
    TimesOf,
    source_options,
)

MIN = {"kafka.bootstrap.servers": "host:9092", "subscribe": "t"}


def _batch(**options: str) -> SourceOptions:
    return source_options(MIN | options, streaming=False)


def _stream(**options: str) -> SourceOptions:
    return source_options(MIN | options, streaming=True)


def test_options_have_defaults() -> None:
    batch, stream = _batch(), _stream()
    assert (batch.start, batch.end) == (Extreme.EARLIEST, Extreme.LATEST)
    assert stream.start is Extreme.LATEST
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert batch.isolation is Isolation.READ_UNCOMMITTED
    assert batch.later_than_all is None
    assert (batch.min_partitions, batch.max_offsets_per_trigger, batch.max_trigger_delay_ms) == (None, None, 900_000)
    assert batch.connection.api_timeout_ms == 120_000


def test_names_are_read_without_regard_to_case() -> None:
    options = source_options(
        {"KAFKA.bootstrap.servers": "h", "SUBSCRIBE": "a, b,a", "STARTINGOFFSETS": "Latest"}, streaming=True
    )
    assert options.chosen.topics == ("a", "b")
    assert options.start is Extreme.LATEST


def test_the_options_choose_the_topics() -> None:
    only = {"kafka.bootstrap.servers": "h"}
    assigned = source_options(only | {"assign": '{"a": [0, 2], "b": [1]}'}, streaming=False).chosen.partitions
    assert assigned == (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))
    assert source_options(only | {"subscribePattern": "a.*"}, streaming=False).chosen.pattern == "a.*"


def test_positions_and_which_comes_first() -> None:
    offsets = '{"t": {"0": 23, "1": -2}}'
    by_offset = Specific({TopicPartition("t", 0): 23, TopicPartition("t", 1): -2})
    times = '{"t": {"0": 1000}}'
    assert _batch(startingOffsets=offsets).start == by_offset
    assert _batch(endingOffsets='{"t": {"0": 5, "1": -1}}').end == Specific(
        {TopicPartition("t", 0): 5, TopicPartition("t", 1): -1}
    )
    assert _batch(startingOffsets=offsets, startingOffsetsByTimestamp=times).start == TimesOf(
        {TopicPartition("t", 0): 1000}
    )
    assert _batch(startingOffsetsByTimestamp=times, startingTimestamp="5").start == AtTime(5)
    assert _batch(endingTimestamp="9", endingOffsets="latest").end == AtTime(9)
    assert _batch(startingOffsetsByTimestampStrategy="latest").later_than_all is Extreme.LATEST


def test_sizes() -> None:
    options = _stream(
        minPartitions="7", maxRecordsPerPartition="5", maxOffsetsPerTrigger="100", minOffsetsPerTrigger="10",
        maxTriggerDelay="2m",
    )  # fmt: skip
    assert options.min_partitions == 7
    assert options.max_records_per_partition == 5
    assert options.max_offsets_per_trigger == 100
    assert options.min_offsets_per_trigger == 10
    assert options.max_trigger_delay_ms == 120_000


def test_settings_of_the_java_client() -> None:
    options = _batch(
        **{
            "kafka.isolation.level": "read_committed",
            "kafka.max.partition.fetch.bytes": "1000",
            "kafka.request.timeout.ms": "7000",
            "kafka.client.id": "me",
            "kafka.max.poll.records": "5",  # tunes the Java client only
            "kafka.group.id": "mine",
            "kafka.security.protocol": "PLAINTEXT",
        }
    )
    assert options.isolation is Isolation.READ_COMMITTED
    assert options.fetch_bytes == 1000
    assert (options.connection.request_timeout_ms, options.connection.client_id) == (7000, "me")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribePattern": "x"}, "exactly one of .*'subscribe' and 'subscribePattern' are"),
        ({"subscribe": " , "}, "names no topic"),
        ({"kafka.bootstrap.servers": ""}, r"'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": "h:port"}, "is not host:port"),
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "cannot be latest"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "cannot be earliest"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "-1 .latest. or -2"),
        ({"startingOffsets": "somewhere"}, "write earliest, latest or"),
        ({"startingOffsets": ""}, "'startingOffsets' is ''; write earliest, latest or"),
        ({"startingOffsets": '{"t": {"0": 9223372036854775808}}'}, "must be integers"),
        ({"startingOffsets": '{"t": 5}'}, "each topic its partitions"),
        ({"startingOffsets": '{"t": {"x": 5}}'}, "must be integers"),
        ({"startingOffsetsByTimestamp": '{"t": {"0": -5}}'}, "not negative"),
        ({"startingTimestamp": "today"}, "'startingTimestamp' is 'today'; it must be an integer"),
        ({"startingOffsetsByTimestampStrategy": "newest"}, "error or latest"),
        ({"failOnDataLoss": "yes"}, "'failOnDataLoss' is 'yes'; it must be true or false"),
        ({"minPartitions": "0"}, "greater than 0"),
        (
            {"kafka.fetch.max.bytes": "99999999999"},
            "'kafka.fetch.max.bytes' is 99999999999; it must be 0 to",
        ),
        ({"kafka.max.partition.fetch.bytes": "-1"}, "must be 0 to"),
        ({"kafka.request.timeout.ms": "0"}, "must be 1 to"),
        ({"kafkaConsumer.pollTimeoutMs": "-1"}, "'kafkaConsumer.pollTimeoutMs' is -1"),
        ({"kafka.isolation.level": "serializable"}, "read_uncommitted or read_committed"),
        ({"kafka.auto.offset.reset": "latest"}, "'startingOffsets'"),
        ({"kafka.enable.auto.commit": "true"}, "checkpoint"),
        ({"kafka.key.deserializer": "x"}, "columns of bytes"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}, "needs sasl.jaas.config"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/nowhere"}, "/nowhere cannot be read"),
    ],
)
def test_an_error_about_an_option_says_what_to_write(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as raised:
        _batch(**given)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"maxOffsetsPerTrigger": "many"}, "must be an integer"),
        ({"maxOffsetsPerTrigger": "0"}, "greater than 0"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "more than"),
        ({"maxTriggerDelay": "soon"}, "a number with one of the units"),
    ],
)
def test_trigger_options_are_checked_for_streams_only(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        _stream(**given)
    assert _batch(**given) == _batch()


def test_a_choice_is_needed() -> None:
    with pytest.raises(OptionError, match="none is set"):
        source_options({"kafka.bootstrap.servers": "h"}, streaming=False)
    for wrong in ("[]", '{"t": 0}', '{"t": [-1]}', "{}", '{"t": ["0"]}'):
        with pytest.raises(OptionError, match="assign"):
            source_options({"kafka.bootstrap.servers": "h", "assign": wrong}, streaming=False)
    for wrong in ("(", r"\p{Alpha}", "[a-z&&[^b]]"):  # also a Java setting, with another meaning
        with pytest.raises(OptionError, match="not a valid regular expression in Python"):
            source_options({"kafka.bootstrap.servers": "h", "subscribePattern": wrong}, streaming=False)


def test_a_stream_has_no_end() -> None:
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(OptionError, match="for batch queries"):
            _stream(**{name: "latest"})


def test_an_option_that_is_misspelled_is_asked_about(caplog: pytest.LogCaptureFixture) -> None:
    _batch(startingOffset="earliest", path="x", anything="y")
    assert [record.getMessage() for record in caplog.records] == [
        "The option 'startingoffset' is not known, and ignored: did you mean 'startingOffsets'?"
    ]
