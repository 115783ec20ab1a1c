"""The clients of librdkafka as the commands use them.

Rules:

1. What librdkafka logs is shown with ``--verbose`` only; of its error events the user is told in one line each.
2. Settings of Kafka's Java client are taken over where librdkafka has the same under another name; those it has not are
   ignored with one warning that names them, because users carry their properties files over.
3. A command first asks for metadata, and fails within seconds where no broker answers, after one where every
   connection is refused. Later it waits for brokers to come back, as Kafka's clients do.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from parley.tools.cli.common_options import client_properties, warn_ignored
from parley.tools.cli.invocation import CommandError, pairs

REACH_S: Final = 5.0
"""How long the first answer of a broker may take."""
REFUSED_S: Final = 1.0
"""How long connections may be refused until nobody is waited for: a broker may just be starting."""

WAITED_FOR: Final = ("UNKNOWN_TOPIC_OR_PART", "LEADER_NOT_AVAILABLE", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
"""What is not there may come into being; Kafka's consumers wait for it with warnings."""

_OTHER_NAMES: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "max.request.size": "message.max.bytes",
    "buffer.memory": "queue.buffering.max.kbytes",
}
"""Settings that librdkafka has under another name than Kafka's Java client."""
_ASSIGNORS: Final = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
_JAVA_ONLY: Final = ("sasl.jaas.config", "ssl.truststore.location", "ssl.truststore.password")
"""Settings that librdkafka knows well enough to refuse."""
_UNKNOWN: Final = re.compile(r'No such configuration property: "([^"]*)"')


def settings_of(own: Mapping[str, Any], file: Path | None, texts: Sequence[str], option: str) -> dict[str, Any]:
    """The settings of a client: the command's, over them those of a properties file, over them ``key=value`` texts."""
    return {**own, **translated({**client_properties(file), **pairs(texts, option)})}


def translated(java: Mapping[str, str]) -> dict[str, str]:
    """Settings of Kafka's Java client with librdkafka's names and values."""
    found = {}
    for name, value in java.items():
        match name:
            case "buffer.memory" if value.isdecimal():
                found[_OTHER_NAMES[name]] = str(max(1, int(value) // 1024))
            case "send.buffer.bytes" | "receive.buffer.bytes":
                found[_OTHER_NAMES[name]] = "0" if value == "-1" else value  # what the system takes
            case "partition.assignment.strategy":
                found[name] = _assignors(value)
            case _:
                found[_OTHER_NAMES.get(name, name)] = value
    return found


def _assignors(classes: str) -> str:
    """The assignors by librdkafka's names; a cooperative one cannot stand beside others there."""
    names = [_ASSIGNORS.get(one.strip(), one.strip()) for one in classes.split(",") if one.strip()]
    return ",".join([name for name in names if name != "cooperative-sticky"] or names)


@dataclass(slots=True)
class Connection:
    """What is known of the brokers a client talks to."""

    bootstrap: str
    reached: bool = False
    """One has answered."""
    is_down: bool = False
    """None can be connected to at present."""
    reason: str = ""
    """The latest thing that went wrong with one."""

    @property
    def is_refused(self) -> bool:
        """Whether nobody listens there."""
        return self.is_down and "Connection refused" in self.reason

    def on_error(self, error: Any) -> None:
        """An error event of librdkafka: told once for each loss of all brokers, and when it is of another kind."""
        match error.name():
            case "_TRANSPORT" | "_RESOLVE" | "_TIMED_OUT":
                self.reason = error.str()
            case "_ALL_BROKERS_DOWN":
                if self.reached and not self.is_down:
                    print(f"Warning: no broker answers at {self.bootstrap}; trying on.", file=sys.stderr)
                self.is_down = True
            case "_UNKNOWN_PARTITION":
                print(f"Warning: {error.str()}; waiting for it.", file=sys.stderr)
            case _ if self.reached:
                print(f"Warning: {error.str()}.", file=sys.stderr)
            case _:
                self.reason = error.str()

    def on_answer(self) -> None:
        """A broker did something for us, so that the next loss is told again."""
        self.is_down = False


def connect(
    make: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any], *, verbose: bool
) -> tuple[Any, Connection]:
    """A client that has not reached anybody yet, and what becomes known of its brokers, as a pair.

    Raises :class:`CommandError` for settings that are wrong; those that are unknown are ignored with a warning.
    """
    from confluent_kafka import KafkaException

    connection = Connection(str(settings["bootstrap.servers"]))
    left = {**({} if verbose else {"log_level": 0}), "error_cb": connection.on_error, **settings}
    ignored = [name for name in _JAVA_ONLY if left.pop(name, None) is not None]
    while True:
        try:
            client = make(dict(left))
            break
        except KafkaException as error:
            reason = error.args[0].str()
            unknown = _UNKNOWN.search(reason)
            if unknown is None or left.pop(unknown[1], None) is None:
                raise CommandError(f"The client cannot be set up: {reason}.") from error
            ignored.append(unknown[1])
        except (AttributeError, TypeError, ValueError) as error:  # settings of the Python binding, given as text
            raise CommandError(f"The client cannot be set up: {error}.") from error
    warn_ignored(ignored)
    return client, connection


def reach(client: Any, connection: Connection, topic: str | None = None, *, timeout_s: float = REACH_S) -> Any:
    """The cluster's metadata, of one topic or all. Raises :class:`CommandError` where no broker answers."""
    from confluent_kafka import KafkaException

    def asked(patience_s: float) -> Any:
        try:
            return client.list_topics(*([] if topic is None else [topic]), timeout=patience_s)
        except KafkaException as error:
            client.poll(0)  # hands over the error events, which say more
            raise CommandError(unreached(connection.bootstrap, connection.reason or error.args[0].str())) from error

    try:
        metadata = asked(min(REFUSED_S, timeout_s))
    except CommandError:
        if connection.is_refused:
            raise
        metadata = asked(timeout_s)
    connection.reached = True
    connection.on_answer()
    return metadata


def unreached(bootstrap: str, reason: str) -> str:
    """What to say where no broker answers."""
    return f"no broker answers at {bootstrap}; is one running? Try `parley start`. ({reason})"
