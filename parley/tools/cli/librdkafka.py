"""Set up the librdkafka clients of the commands.

Rules:

1. librdkafka's log is shown only with ``--verbose``. Each of its error events is one line for the user.
2. Settings of Kafka's Java client are translated if librdkafka supports them under another name. All others are ignored
   with a single warning that lists them, because users reuse their properties files.
3. A command first requests metadata. It fails within seconds if no broker responds, and after one second if every
   connection is refused. Later on, it waits for brokers to return, as Kafka's clients do.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from parley.protocol.security.client_security import is_security_key
from parley.tools.cli.common_options import client_properties, warn_ignored
from parley.tools.cli.invocation import CommandError, pairs, sentence

if TYPE_CHECKING:
    from parley.protocol.client import Client

T = TypeVar("T")

ASK_MS: Final = 5000
"""The timeout, in milliseconds, of the requests that Parley's own client sends in addition to librdkafka."""
REACH_S: Final = 5.0
"""The timeout for the first response, in seconds."""
REFUSED_S: Final = 1.0
"""How long to retry refused connections, in seconds, because a broker may just be starting."""

WAITED_FOR: Final = ("UNKNOWN_TOPIC_OR_PART", "LEADER_NOT_AVAILABLE", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
"""Errors of topics and partitions that may be created later. Kafka's consumers warn and wait."""

_OTHER_NAMES: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "max.request.size": "message.max.bytes",
    "buffer.memory": "queue.buffering.max.kbytes",
}
"""Settings whose names in librdkafka differ from those in Kafka's Java client."""
_ASSIGNORS: Final = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
_DAMAGE: Final = "docs/damage.md says what to do."
_OTHER_ID: Final = "`parley groups --list --type` shows the types. Choose another id with --group."
_GROUP_RIGHT: Final = (
    "An administrator grants it: `parley acls --add --allow-principal User:NAME --operation Read --group GROUP`. Name "
    "the group with --group: otherwise `parley consume` generates one. With --partition it needs none."
)
_UNKNOWN: Final = re.compile(r'No such configuration property: "([^"]*)"')


def topic_right(operation: str) -> str:
    """Return a sentence that says how an administrator grants a right on a topic."""
    return (
        f"An administrator grants it: `parley acls --add --allow-principal User:NAME --operation {operation} "
        "--topic TOPIC`."
    )


def check_topic_name(name: str) -> None:
    """Raise ``CommandError`` if no topic can have this name. librdkafka does not say which characters are allowed."""
    from parley.broker.metadata import topic_names
    from parley.protocol.errors import KafkaError

    try:
        topic_names.check_topic_name(name)
    except KafkaError as error:
        raise CommandError(sentence(error.message)) from error


def reason_of(error: Any) -> str:
    """Explain an error that a librdkafka consumer received, in sentences for the user."""
    text = sentence(error.str())
    match error.name():
        case "INCONSISTENT_GROUP_PROTOCOL":
            return (
                f"{text} The id belongs to a group of another type, such as a share group, or its members use other "
                f"assignors. {_OTHER_ID}"
            )
        case "INVALID_MSG":  # CORRUPT_MESSAGE
            return f"{text} The record there is damaged, and no live replica has it. {_DAMAGE}"
        case "GROUP_AUTHORIZATION_FAILED":
            return f"{text} The user needs the right Read on the group, which includes Describe. {_GROUP_RIGHT}"
        case "TOPIC_AUTHORIZATION_FAILED":
            return f"{text} The user lacks the right Read on the topic. {topic_right('Read')}"
        case "GROUP_ID_NOT_FOUND":  # Kafka's error for a share group
            return f"{text} The id belongs to a group of another type. {_OTHER_ID}"
    return text


def settings_of(own: Mapping[str, Any], file: Path | None, texts: Sequence[str], option: str) -> dict[str, Any]:
    """Return the settings of a client with librdkafka's names. The ``key=value`` texts override the file, which
    overrides ``own``. Raises ``CommandError`` if a text or the file cannot be parsed."""
    return {**own, **translated({**client_properties(file), **pairs(texts, option)})}


def translated(java: Mapping[str, str]) -> dict[str, str]:
    """Translate settings of Kafka's Java client to librdkafka's names and values."""
    found = {}
    for name, value in java.items():
        match name:
            case "buffer.memory" if value.isdecimal():
                found[_OTHER_NAMES[name]] = str(max(1, int(value) // 1024))
            case "send.buffer.bytes" | "receive.buffer.bytes":
                found[_OTHER_NAMES[name]] = "0" if value == "-1" else value  # the default of the operating system
            case "partition.assignment.strategy":
                found[name] = _assignors(value)
            case _:
                found[_OTHER_NAMES.get(name, name)] = value
    return found


def _assignors(classes: str) -> str:
    """Translate assignor classes to librdkafka's names. librdkafka cannot combine a cooperative assignor with others,
    so it is dropped if there are others."""
    names = [_ASSIGNORS.get(one.strip(), one.strip()) for one in classes.split(",") if one.strip()]
    return ",".join([name for name in names if name != "cooperative-sticky"] or names)


@dataclass(slots=True)
class Connection:
    """The state of a client's connections to the brokers."""

    bootstrap: str
    security: Mapping[str, str] = field(repr=False)
    """The security settings, with the names that Java's client uses."""
    reached: bool = False
    """True once a broker has responded."""
    is_down: bool = False
    """True while no broker is reachable."""
    reason: str = ""
    """The latest connection error."""
    refusal: str = ""
    """The latest login or TLS error, before any broker has responded."""

    @property
    def is_refused(self) -> bool:
        """True if no broker is reachable because their machines refuse the connections."""
        return self.is_down and "Connection refused" in self.reason

    def on_error(self, error: Any) -> None:
        """Handle an error event of librdkafka: record the reason, and print a warning if a broker has responded before.
        Warns only once each time all brokers become unreachable."""
        match error.name():
            case "_TRANSPORT" | "_RESOLVE" | "_TIMED_OUT":
                self.reason = error.str()
            case "_ALL_BROKERS_DOWN":
                if self.reached and not self.is_down:
                    print(f"Warning: no broker responds at {self.bootstrap}; retrying.", file=sys.stderr)
                self.is_down = True
            case "_UNKNOWN_PARTITION":
                print(f"Warning: {error.str()}; waiting for it.", file=sys.stderr)
            case _ if self.reached:
                print(f"Warning: {error.str()}.", file=sys.stderr)
            case "_AUTHENTICATION" | "_SSL" if not self.reached:
                self.refusal = error.str()
            case _:
                self.reason = error.str()

    def ask(self, work: Callable[[Client], Awaitable[T]]) -> T | None:
        """Run ``work`` with Parley's own client, to find out what librdkafka does not report. Returns its result.

        Returns None if that fails, for example because no broker responds within ``ASK_MS``, or because only librdkafka
        can log in.
        """
        from parley.tools.cli.cluster_client import on_cluster

        try:
            return on_cluster(self.bootstrap, self.security, work, timeout_ms=ASK_MS)
        except CommandError:
            return None

    def on_response(self) -> None:
        """Record that a broker responded, so that the next loss of all brokers is reported again."""
        self.is_down = False


def connect(
    make: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any], *, verbose: bool
) -> tuple[Any, Connection]:
    """Create a client that is not connected yet. Returns it, and the state of its connections.

    Ignores unknown settings with a warning. Raises ``CommandError`` if a setting is invalid.
    """
    from confluent_kafka import KafkaException

    from parley.protocol.security.librdkafka import unused_settings

    connection = Connection(str(settings["bootstrap.servers"]), security_properties(settings))
    left = {**({} if verbose else _without_log()), "error_cb": connection.on_error, **secured(settings)}
    ignored = unused_settings(settings)
    while True:
        try:
            client = make(dict(left))
            break
        except KafkaException as error:
            reason = error.args[0].str()
            unknown = _UNKNOWN.search(reason)
            if unknown is None or left.pop(unknown[1], None) is None:
                raise CommandError(f"The client cannot be created: {reason}.") from error
            ignored.append(unknown[1])
        except (AttributeError, TypeError, ValueError) as error:  # settings of the Python binding that must not be text
            raise CommandError(f"The client cannot be created: {error}.") from error
    warn_ignored(ignored)
    return client, connection


def _without_log() -> dict[str, Any]:
    """Return settings that suppress the log, including the fatal errors, which the log level 0 still shows."""
    nowhere = logging.Logger("librdkafka")
    nowhere.addHandler(logging.NullHandler())
    return {"log_level": 0, "logger": nowhere}


def security_properties(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the security settings among a client's settings, in the notation of the Java client.

    librdkafka's own settings (``sasl.username``) are not translated.
    """
    return {name: value for name, value in settings.items() if is_security_key(name) and isinstance(value, str)}


def secured(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the security settings to those of librdkafka. Raises ``CommandError`` if they are unusable."""
    from parley.protocol.security.librdkafka import librdkafka_settings

    if not any(map(is_security_key, settings)):
        return dict(settings)
    try:
        return librdkafka_settings(settings)
    except ValueError as error:
        raise CommandError(f"The client cannot be created: {error}.") from error


def reach(client: Any, connection: Connection, topic: str | None = None, *, timeout_s: float = REACH_S) -> Any:
    """Return the metadata of one topic, or of all. Raises ``CommandError`` if no broker responds within the timeout, or
    if the brokers reject the client."""
    from confluent_kafka import KafkaException

    def request(timeout_s: float) -> Any:
        try:
            return client.list_topics(*([] if topic is None else [topic]), timeout=timeout_s)
        except KafkaException as error:
            client.poll(0)  # delivers the error events, which have more detail
            raise CommandError(unreached(connection, connection.reason or error.args[0].str())) from error

    try:
        metadata = request(min(REFUSED_S, timeout_s))
    except CommandError:
        if connection.is_refused:
            raise
        metadata = request(timeout_s)
    connection.reached = True
    connection.on_response()
    return metadata


def unreached(connection: Connection, reason: str) -> str:
    """Return the error message for a cluster that does not respond, or that rejects this client."""
    from parley.tools.cli.cluster_client import why_refused  # slow to import

    bootstrap = connection.bootstrap
    if connection.refusal:
        if _is_unverified(connection) and (refusal := asyncio.run(why_refused(bootstrap, connection.security))):
            return refusal
        return (
            f"{bootstrap} rejects this client. Correct the security settings in the client's properties file. "
            f"({connection.refusal})"
        )
    if not connection.is_refused and (refusal := asyncio.run(why_refused(bootstrap, connection.security))):
        return refusal
    return f"no broker responds at {bootstrap}. Is a broker running? `parley start` starts one. ({reason})"


def _is_unverified(connection: Connection) -> bool:
    """Return True if librdkafka rejects a broker's certificate and Parley's client trusts the same authorities, so that
    its error can explain why."""
    uses_own_names = any(name.startswith("ssl.ca.") for name in connection.security)
    return "certificate could not be verified" in connection.refusal and not uses_own_names
