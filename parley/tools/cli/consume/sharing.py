"""Consume as a member of a share group (KIP-932), with librdkafka's share consumer.

The options, their defaults and their errors are those of kafka-console-share-consumer. A record is acknowledged after
it has been written to the output. A record that the member has acquired but not written is released when the member
leaves.
"""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from parley.tools.cli import leaderless
from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.consume.options import Options
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.librdkafka import reason_of, security_properties
from parley.tools.plurals import plural

if TYPE_CHECKING:
    from parley.protocol.client import Client

DEFAULT_GROUP: Final = "console-share-consumer"
_SINCE: Final = "2.16"
"""The first version of confluent-kafka with share consumers."""
_UNSUPPORTED: Final = "The cluster does not support share groups. `parley features` shows the level of share.version."


def check_options(options: Options, group: str) -> None:
    """Raise ``CommandError`` for options that contradict each other, or that share groups do not support."""
    if not options.topic:
        raise CommandError("--share needs --topic.")
    if options.reject and options.release:
        raise CommandError("At most one of --reject and --release may be specified.")
    foreign = {
        "--include": bool(options.include),
        "--partition": options.partition is not None,
        "--offset": options.offset is not None,
        "--skip-message-on-error": options.skip_message_on_error,
    }
    for name, is_given in foreign.items():
        if is_given:
            raise CommandError(f"{name} cannot be used with --share.")
    of_the_group = {
        "--from-beginning": (options.from_beginning, "share.auto.offset.reset=earliest"),
        "--isolation-level": (bool(options.isolation_level), f"share.isolation.level={options.isolation_level}"),
    }
    for name, (is_given, setting) in of_the_group.items():
        if is_given:
            raise CommandError(
                f"{name} cannot be used with --share: it is a setting of the group. Use `parley configs --alter "
                f"--entity-type groups --entity-name {group} --add-config {setting}`."
            )


def merged(given: Mapping[str, str], *, bootstrap: str, group: str) -> dict[str, Any]:
    """Return the share consumer's settings. ``given`` overrides the defaults, except the address, the group and the
    explicit acknowledgement."""
    return {
        "client.id": DEFAULT_GROUP,
        "topic.metadata.refresh.interval.ms": 5000,  # so that a topic created later is found soon
        **given,
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
    }


def share_consumer() -> Callable[[dict[str, Any]], Any]:
    """Return the class of librdkafka's share consumer. Raises ``CommandError`` if the installed version has none."""
    import confluent_kafka

    if not hasattr(confluent_kafka, "ShareConsumer"):
        raise CommandError(f"--share needs confluent-kafka {_SINCE} or newer: `pip install confluent-kafka>={_SINCE}`.")
    return confluent_kafka.ShareConsumer


def is_there(settings: Mapping[str, Any], topic: str) -> bool:
    """Return True if the topic exists, or if this cannot be checked because the login uses librdkafka's own settings.

    Warns of partitions without a leader. Raises ``CommandError`` if no broker responds or the cluster does not support
    share groups.
    """
    from parley.protocol.errors import ErrorCode, KafkaError
    from parley.protocol.messages.share_groups import ShareGroupHeartbeatRequest

    async def check(client: Any) -> bool:
        try:
            await client.version_for(ShareGroupHeartbeatRequest)
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                raise CommandError(_UNSUPPORTED) from error
            raise
        found = (await client.metadata([topic])).topics[0]
        leaderless.warn(leaderless.described_in(found))
        return bool(found.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    return _result_unless_unusable(settings, check, otherwise=True)


def _result_unless_unusable(
    settings: Mapping[str, Any], ask: Callable[[Client], Awaitable[bool]], *, otherwise: bool
) -> bool:
    """Return the result of ``ask``, or ``otherwise`` if the login uses librdkafka's own settings, which Parley's client
    cannot use."""
    if "sasl.username" in settings:
        return otherwise
    return on_cluster(str(settings["bootstrap.servers"]), security_properties(settings), ask)


_AT_THE_END: Final = "latest"
_BEGINS_AT_THE_END: Final = (
    "Note: share group '{group}' has not consumed topic '{topic}' before. It starts at the end: it gets only records "
    "that are written from now on. To start with the oldest record, first use `parley configs --alter --entity-type "
    "groups --entity-name {group} --add-config share.auto.offset.reset=earliest`."
)


def warn_of_new_group(settings: Mapping[str, Any], group: str, topic: str) -> None:
    """Print a note if the group has never consumed the topic and will start at its end. Prints nothing if this cannot
    be found out, for example because the client lacks the right."""
    if _result_unless_unusable(settings, lambda client: _begins_at_the_end(client, group, topic), otherwise=False):
        print(_BEGINS_AT_THE_END.format(group=group, topic=topic), file=sys.stderr, flush=True)


async def _begins_at_the_end(client: Client, group: str, topic: str) -> bool:
    from parley.protocol.errors import ErrorCode, KafkaError
    from parley.protocol.messages.share_groups import DescribeShareGroupOffsetsRequest as Request
    from parley.tools.cli import configs
    from parley.tools.cli.cluster_client import of_coordinator

    request = Request(groups=[Request.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)])
    try:
        response = await of_coordinator(client, group, request, lambda response: int(response.groups[0].error_code))
        (described,) = response.groups
        if described.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            return False
        if any(each.topic_name == topic for each in described.topics):
            return False
        if described.error_code and await _has_another_type(client, group):
            return False  # the group's own error says so
        found = await configs.describe(client, configs.Entity("group", group), all_settings=False)
    except (CommandError, KafkaError):
        return False
    return next((one.value for one in found if one.name == "share.auto.offset.reset"), _AT_THE_END) == _AT_THE_END


async def _has_another_type(client: Client, group: str) -> bool:
    from parley.protocol.messages.groups import ListGroupsRequest
    from parley.tools.cli.cluster_client import of_coordinator

    listed = await of_coordinator(client, group, ListGroupsRequest(), lambda response: int(response.error_code))
    return any(each.group_id == group and each.group_type.lower() != "share" for each in listed.groups)


class ShareMember:
    """A share consumer that returns its records one by one, and acknowledges those that were written."""

    def __init__(self, consumer: Any, flush: Callable[[], object], *, rejects: bool, releases: bool) -> None:
        from confluent_kafka import AcknowledgeType

        self._consumer = consumer
        self._flush = flush
        self._unreadable = AcknowledgeType.REJECT
        self._written = (
            AcknowledgeType.REJECT if rejects else AcknowledgeType.RELEASE if releases else AcknowledgeType.ACCEPT
        )
        self._acquired: deque[Any] = deque()
        self._decided: list[tuple[Any, Any]] = []
        self._waits = False
        self._is_interrupted = False
        consumer.set_acknowledgement_commit_callback(_warn_if_refused)

    def poll(self, timeout_s: float) -> Any:
        """Return the next message, or None if none arrives within the timeout.

        Before it fetches more messages, it flushes the output and acknowledges the messages passed to ``decide``.
        Inside ``interruptible``, raises KeyboardInterrupt after SIGINT or SIGTERM.
        """
        self._waits = True
        if self._is_interrupted:
            raise KeyboardInterrupt
        if not self._acquired:
            self._acknowledge()
            self._acquired.extend(self._consumer.poll(timeout_s))
        self._waits = False
        return self._acquired.popleft() if self._acquired else None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM inside the block. The first signal makes ``poll`` raise KeyboardInterrupt after the
        current record; a second signal raises it immediately."""
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: object) -> None:
        if self._waits or self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True

    def decide(self, message: Any, is_written: bool) -> None:
        """Record how to acknowledge a message: as the options say if it was written, otherwise (it cannot be read) as
        rejected."""
        self._decided.append((message, self._written if is_written else self._unreadable))

    def close(self) -> None:
        """Acknowledge the records that were written, release the rest, and leave the group."""
        try:
            self._acknowledge()
        finally:
            self._consumer.close()

    def _acknowledge(self) -> None:
        """Flush the output, and acknowledge the records in it. librdkafka sends the acknowledgements with the next
        poll."""
        self._flush()
        for message, how in self._decided:
            self._consumer.acknowledge(message, how)
        self._decided.clear()


def _warn_if_refused(offsets: Mapping[Any, set[int]], error: Any) -> None:
    if error is None:
        return
    for partition, refused in offsets.items():
        print(
            f"Warning: not acknowledged: {plural(len(refused), 'record')} of {partition.topic}-{partition.partition}, "
            f"which the group may deliver again: {reason_of(error.args[0])}",
            file=sys.stderr,
        )
