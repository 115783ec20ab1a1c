"""The keys that standalone and distributed workers share, with Kafka's names and defaults.

A distributed worker's definition is ``COMMON + ConfigDef(...)``. Keys that start with ``producer.``, ``consumer.`` or
``admin.`` are for the clients. A connector's own keys (``consumer.override.``, ...) override them, if the policy allows
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from parley.pipeline.connect.config import (
    BOOLEAN,
    CLASS,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    STRING,
    ConfigDef,
    at_least,
    non_empty,
    one_of,
)
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.service.login import JAAS_FILE
from parley.protocol.security.client_security import SecurityProperties

HEADER_CONVERTER: Final = "org.apache.kafka.connect.storage.SimpleHeaderConverter"

BASIC_AUTH: Final = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
LISTENERS_TLS: Final = "listeners.https."
ADMIN_TLS: Final = "admin.listeners.https."


def _known_extensions(name: str, value: Any) -> None:
    for one in value:
        if one not in (BASIC_AUTH, BASIC_AUTH.rpartition(".")[2]):
            raise ConfigError(
                f"Invalid value {one} for configuration {name}: it is a Java class that Parley cannot run; only "
                f"{BASIC_AUTH} is built in"
            )


def _protocol(name: str, value: Any) -> None:
    if value is not None:
        one_of("http", "https", ignore_case=True)(name, value)


REST: Final = (
    ConfigDef()
    .define("listeners", LIST, ["http://:8083"], LOW)
    .doc("Where the REST API listens, as http://host:port or https://host:port; without a host on all addresses.")
    .define("admin.listeners", LIST, None, LOW)
    .doc("Where the admin endpoints (/admin/loggers) listen, if not on the listeners; empty: they are not served.")
    .define("rest.advertised.host.name", STRING, None, LOW)
    .doc("The host that this worker advertises to other workers.")
    .define("rest.advertised.port", INT, None, LOW)
    .doc("The port that this worker advertises to other workers.")
    .define("rest.advertised.listener", STRING, None, LOW, validator=_protocol)
    .doc("The protocol that this worker advertises: http or https. The default is http if any listener uses it.")
    .define("rest.extension.classes", LIST, [], LOW, validator=_known_extensions)
    .doc(f"{BASIC_AUTH}: every request needs a name and a password, which the JAAS file's section KafkaConnect names.")
    .define(JAAS_FILE, STRING, None, LOW)
    .doc(
        "The JAAS file with the section KafkaConnect; without it the one that KAFKA_OPTS names (-D"
        + JAAS_FILE
        + "=...)."
    )
    .define("access.control.allow.origin", STRING, "", LOW)
    .doc("The header Access-Control-Allow-Origin of responses.")
    .define("access.control.allow.methods", STRING, "", LOW)
    .doc("The header Access-Control-Allow-Methods of responses.")
)

WORK: Final = (
    ConfigDef()
    .define("bootstrap.servers", LIST, ["localhost:9092"], HIGH, validator=non_empty)
    .doc("One or more brokers, as host:port, from which the worker learns the cluster.")
    .define("client.id", STRING, "", LOW)
    .doc("The client id of this worker, which brokers log.")
    .define("key.converter", CLASS, importance=HIGH)
    .doc("The default converter of record keys.")
    .define("value.converter", CLASS, importance=HIGH)
    .doc("The default converter of record values.")
    .define("header.converter", CLASS, HEADER_CONVERTER, LOW)
    .doc("The default converter of header values.")
    .define("offset.flush.interval.ms", LONG, 60_000, LOW, validator=at_least(1))
    .doc("How often the offsets of tasks are committed, in ms.")
    .define("offset.flush.timeout.ms", LONG, 5_000, LOW, validator=at_least(1))
    .doc("How long a commit of offsets may take before it is tried again, in ms.")
    .define("task.shutdown.graceful.timeout.ms", LONG, 5_000, LOW, validator=at_least(0))
    .doc("How long all tasks together may take to stop, in ms, before they are abandoned.")
    .define("plugin.path", LIST, [], LOW)
    .doc("Directories with Python modules of plugins, in addition to the installed ones.")
    .define(
        "connector.client.config.override.policy", STRING, "All", MEDIUM, validator=one_of("All", "None", "Principal")
    )
    .doc("Which client settings connectors may override: All, None or Principal.")
    .define("config.providers", LIST, [], LOW)
    .doc("Aliases of the providers that resolve ${alias:path:key}; config.providers.<alias>.class names the class.")
    .define("topic.tracking.enable", BOOLEAN, True, LOW)
    .doc("Whether the worker records which topics each connector uses.")
    .define("topic.tracking.allow.reset", BOOLEAN, True, LOW)
    .doc("Whether the recorded topics may be reset.")
    .define("topic.creation.enable", BOOLEAN, True, LOW)
    .doc("Whether topics of source connectors are created with their topic.creation.* settings.")
)

COMMON: Final = WORK + REST
"""The keys of every worker."""

STANDALONE: Final = COMMON + ConfigDef().define(
    "offset.storage.file.filename", STRING, importance=HIGH, validator=non_empty
).doc("The file that stores the offsets of source connectors.")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """A worker's configuration: the given strings, and their typed values."""

    given: Mapping[str, str] = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, given: Mapping[str, str], definition: ConfigDef = STANDALONE) -> Self:
        """Parse the configuration. Raises ConfigError, whose ``messages`` are all problems."""
        judged = definition.validate(given)
        problems = [error for one in judged for error in one.errors]
        try:
            SecurityProperties.of(given).read()
        except ValueError as error:
            problems.append(f"Invalid value for configuration security.protocol or a related key: {error}")
        if problems:
            raise ConfigError(*problems)
        return cls(dict(given), {one.name: one.value for one in judged})

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def security(self) -> SecurityProperties:
        """The security settings with which the worker itself connects to the cluster."""
        return SecurityProperties.of(self.given)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.values["bootstrap.servers"])

    @property
    def exactly_once_sources(self) -> bool:
        """True if source tasks write exactly once (KIP-618), which only workers of a group support."""
        return str(self.values.get("exactly.once.source.support", "disabled")).lower() == "enabled"

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the given settings whose keys have this prefix, without the prefix: with ``value.converter.``, those
        of the converter.
        """
        return with_prefix(self.given, prefix)


def with_prefix(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the settings whose keys have this prefix, without the prefix."""
    return {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
