"""``parley consume``: print the records of a topic, as kafka-console-consumer does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from parley.tools.cli.app import App
from parley.tools.cli.common_options import client_properties
from parley.tools.cli.consume.options import Options
from parley.tools.cli.invocation import CommandError, pairs

if TYPE_CHECKING:
    from parley.tools.cli.consume.formatting import Formatter
    from parley.tools.cli.consume.reading import Printed
    from parley.tools.cli.librdkafka import Connection

app = App(
    "Print records as they arrive, one value per line.\n\n"
    "Starts at the end of the topic; `--from-beginning` starts with the oldest record. Runs until Ctrl-C, or until "
    "`--max-messages` or `--timeout-ms` is reached. Waits for a topic that does not exist; unlike Kafka's tool, it "
    "creates none, except with `--consumer-property allow.auto.create.topics=true`.\n\n"
    "With `--share`, consumes as a member of a share group, as kafka-console-share-consumer does. Each record is "
    "acknowledged after it is printed: accepted, or with `--reject` or `--release`. At the end, also with Ctrl-C, "
    "the records that are not printed are released, and the member leaves the group.",
    examples=[
        ("parley consume --topic greetings --from-beginning --max-messages 10", "the ten oldest records"),
        ("parley consume --topic greetings --group readers", "continue at the offsets that the group committed"),
        (
            "parley consume --topic greetings --partition 0 --offset -5",
            "the last five records of a partition, then new ones",
        ),
        ("parley consume --topic greetings --from-beginning --json | jq .value", "the values, for another program"),
        (
            "parley consume --topic jobs --share --group workers --property print.delivery=true",
            "as a member of a share group, with the number of deliveries of each record",
        ),
    ],
)


@app.only_command_with(Options)
def consume(options: Options) -> None:
    in_file, in_texts = (
        client_properties(options.consumer_config),
        pairs(options.consumer_property, "--consumer-property"),
    )
    if options.share:
        _consume_in_share_group(options, in_file, in_texts)
    elif options.reject or options.release or options.reject_message_on_error:
        raise CommandError("--reject, --release and --reject-message-on-error need --share.")
    else:
        _consume(options, in_file, in_texts)


def _consume(options: Options, in_file: dict[str, str], in_texts: dict[str, str]) -> None:
    """Consume without a group, or as a member of a consumer group."""
    from confluent_kafka import Consumer

    from parley.tools.cli.consume import consumer_config, reading
    from parley.tools.cli.librdkafka import check_topic_name, connect, translated

    position = consumer_config.check_position(
        options.topic, options.include, options.partition, options.offset, options.from_beginning
    )
    own = consumer_config.merged(
        translated({**in_file, **in_texts}),
        bootstrap=options.bootstrap_server,
        group=consumer_config.group_of(options.group, in_file, in_texts, options.partition),
        isolation=options.isolation_level,
        from_beginning=options.from_beginning,
    )
    line = _line(options)
    if options.topic:
        check_topic_name(options.topic)
    consumer_config.check_protocol(own)
    consumer, connection = connect(Consumer, own, verbose=options.verbose)
    # SIGTERM must also print the count and leave the group, so that its other members need not wait.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _until_the_end(options, connection, consumer.close) as printed:
        source = reading.Source(options.topic, options.include, options.partition, position)
        is_there = reading.begin(consumer, connection, source)
        reader = reading.Reader(consumer, connection, sys.stdout.buffer, line, options.skip_message_on_error)
        reader.run(reading.Limits(options.max_messages, options.timeout_ms), printed)
        if not is_there and not printed.count:
            reading.check_topic(consumer, connection, options.topic)


def _consume_in_share_group(options: Options, in_file: dict[str, str], in_texts: dict[str, str]) -> None:
    from parley.tools.cli.consume import consumer_config, reading, sharing
    from parley.tools.cli.librdkafka import check_topic_name, connect, translated

    group = consumer_config.group_of(options.group, in_file, in_texts, None) or sharing.DEFAULT_GROUP
    sharing.check_options(options, group)
    check_topic_name(options.topic)
    own = sharing.merged(translated({**in_file, **in_texts}), bootstrap=options.bootstrap_server, group=group)
    line = _line(options)
    is_there = sharing.is_there(own, options.topic)
    if is_there:
        sharing.warn_of_new_group(own, group, options.topic)
    else:
        reading.warn_of_missing(options.topic)
    consumer, connection = connect(sharing.share_consumer(), own, verbose=options.verbose)
    connection.reached = True
    output = sys.stdout.buffer
    member = sharing.ShareMember(consumer, output.flush, rejects=options.reject, releases=options.release)
    with member.interruptible(), _until_the_end(options, connection, member.close) as printed:
        consumer.subscribe([options.topic])
        reader = reading.Reader(member, connection, output, line, options.reject_message_on_error, member.decide)
        reader.run(reading.Limits(options.max_messages, options.timeout_ms), printed)
        if not is_there and not printed.count and not sharing.is_there(own, options.topic):
            raise CommandError(reading.MISSING.format(topic=options.topic))


@contextmanager
def _until_the_end(options: Options, connection: Connection, close: Callable[[], object]) -> Iterator[Printed]:
    """Yield a counter of printed records. When the block ends, even after an interrupt, close the consumer and print
    the count. Turns errors of librdkafka into ``CommandError``."""
    from confluent_kafka import KafkaException

    from parley.tools.cli.consume.reading import Printed
    from parley.tools.cli.librdkafka import reason_of

    printed = Printed()
    try:
        yield printed
    except KafkaException as error:
        raise CommandError(reason_of(error.args[0])) from error
    finally:
        close()
        if connection.reached:
            print(f"Processed a total of {printed.count} messages", file=sys.stderr)
        if options.enable_systest_events:
            print("shutdown_complete", flush=True)


def _line(options: Options) -> Formatter:
    """Return the formatter that the options name. Raises ``CommandError`` if there is none, or a setting or file is
    invalid."""
    from parley.tools.cli.consume.formatting import formatter, json_formatter

    named = {"key.deserializer": options.key_deserializer, "value.deserializer": options.value_deserializer}
    properties = {
        **client_properties(options.formatter_config),
        **{name: one for name, one in named.items() if one},
        **pairs(options.formatter_property, "--formatter-property"),
    }
    return json_formatter(properties) if options.json_output else formatter(options.formatter, properties)
