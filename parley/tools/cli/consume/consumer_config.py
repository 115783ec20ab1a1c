"""The configuration of the console consumer: which options exclude each other, and which source of a setting takes
precedence.

The rules and their error messages are those of kafka-console-consumer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.librdkafka import security_properties

LATEST: Final = "latest"
EARLIEST: Final = "earliest"
_UNSUPPORTED_PROTOCOL: Final = (
    "The cluster does not support the new CONSUMER group protocol. Set group.protocol=classic on the consumer configs "
    "to revert to the CLASSIC protocol until the cluster is upgraded."
)


def check_position(topic: str, include: str, partition: int | None, offset: str | None, from_beginning: bool) -> str:
    """Return the start position: ``earliest``, ``latest`` or an offset. Raises ``CommandError`` if the options
    contradict each other or the offset is malformed."""
    if bool(topic) == bool(include):
        raise CommandError("Exactly one of the following arguments is required: [topic], [include]")
    if partition is not None and not topic:
        raise CommandError("The topic is required when partition is specified.")
    if partition is not None and partition < 0:
        raise CommandError(f"The partition must be 0 or more, not {partition}.")
    if partition is not None and from_beginning and offset is not None:
        raise CommandError("Options from-beginning and offset cannot be specified together.")
    if partition is None and offset is not None:
        raise CommandError("The partition is required when offset is specified.")
    if offset is None:
        return EARLIEST if from_beginning else LATEST
    if offset.lower() in (EARLIEST, LATEST):
        return offset.lower()
    if not offset.removeprefix("-").isdecimal() or abs(int(offset)) >= 2**63:
        raise CommandError(
            f"The provided offset value '{offset}' is incorrect. Valid values are 'earliest', 'latest', a non-negative "
            "long, or -n for n from the end."
        )
    return offset


def group_of(group: str, in_file: Mapping[str, str], in_texts: Mapping[str, str], partition: int | None) -> str:
    """Return the requested group, or an empty string if there is none. Raises ``CommandError`` if the options and files
    name different groups, or a group and a partition."""
    named = list(dict.fromkeys(one for one in (group, in_file.get("group.id"), in_texts.get("group.id")) if one))
    if len(named) > 1:
        raise CommandError(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: {', '.join(repr(one) for one in named)}"
        )
    if named and partition is not None:
        raise CommandError("Options group and partition cannot be specified together.")
    return named[0] if named else ""


def merged(given: Mapping[str, str], *, bootstrap: str, group: str, isolation: str | None, from_beginning: bool) -> Any:
    """Return the consumer's settings. ``given`` overrides the defaults; the other arguments override ``given``. Raises
    ``CommandError`` if ``from_beginning`` contradicts ``auto.offset.reset``."""
    reset = given.get("auto.offset.reset")
    if from_beginning and reset not in (None, EARLIEST):
        raise CommandError(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', please remove one option"
        )
    settings: dict[str, Any] = {
        "client.id": "console-consumer",
        "auto.offset.reset": EARLIEST if from_beginning else LATEST,
        "isolation.level": "read_uncommitted",
        "allow.auto.create.topics": "false",  # true in the Java client: a misspelled name would become a topic
        "topic.metadata.refresh.interval.ms": 5000,  # so that a topic created later is found soon
        **({} if group else {"enable.auto.commit": "false"}),
        **given,
        "bootstrap.servers": bootstrap,
        "group.id": group or f"console-consumer-{uuid4().int % 100_000}",
    }
    if isolation is not None:
        settings["isolation.level"] = isolation
    if "group.protocol" in settings:
        settings["group.protocol"] = settings["group.protocol"].lower()
    return settings


def check_protocol(settings: Mapping[str, Any]) -> None:
    """Raise ``CommandError`` if the settings select the consumer protocol and the cluster does not support it.
    librdkafka would wait for it forever."""
    from parley.protocol.errors import ErrorCode, KafkaError
    from parley.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

    if settings.get("group.protocol") != "consumer" or "sasl.username" in settings:
        return  # librdkafka's own settings of a login cannot be used here

    async def has_protocol(client: Any) -> bool:
        try:
            await client.version_for(ConsumerGroupHeartbeatRequest)
        except KafkaError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            return False
        return True

    if not on_cluster(str(settings["bootstrap.servers"]), security_properties(settings), has_protocol):
        raise CommandError(_UNSUPPORTED_PROTOCOL)
