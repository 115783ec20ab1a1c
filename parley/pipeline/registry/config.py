"""The settings of the registry, with Confluent's names if Confluent has the setting.

``kafkastore.*`` are settings of the client for the cluster: ``kafkastore.security.protocol`` and so on. ``ssl.*`` are
settings of the listeners with TLS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from parley.pipeline.connect.config import HIGH, INT, LIST, LOW, MEDIUM, STRING, ConfigDef, at_least, non_empty, one_of
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.connect.worker_config import with_prefix
from parley.pipeline.registry.compatibility import Level
from parley.pipeline.service.login import jaas_file_of
from parley.pipeline.service.server import Listener, parse_listeners
from parley.protocol.security.client_security import SecurityProperties

_PREFIX: Final = "kafkastore."
_OTHER_PREFIXES: Final = (_PREFIX, "ssl.", "config.providers")
"""The prefixes of settings that other modules check."""
_PORT: Final = 8081

REGISTRY: Final = (
    ConfigDef()
    .define("kafkastore.bootstrap.servers", LIST, ["localhost:9092"], HIGH, validator=non_empty)
    .doc("The brokers from which the registry discovers the cluster: one or several host:port.")
    .define("kafkastore.topic", STRING, "_schemas", LOW, validator=non_empty)
    .doc("The topic with the schemas.")
    .define("kafkastore.topic.replication.factor", INT, 3, LOW, validator=at_least(1))
    .doc("The replication factor of the topic, if this instance creates it; limited to the number of brokers.")
    .define("listeners", LIST, [f"http://127.0.0.1:{_PORT}"], LOW)
    .doc(
        "Where the REST API listens, as http://host:port or https://host:port; without a host on all addresses. "
        "By default only programs on the same machine can reach it, because it has neither TLS nor logins."
    )
    .define("schema.compatibility.level", STRING, "backward", MEDIUM, validator=one_of(*Level, ignore_case=True))
    .doc("The compatibility level of subjects without their own level, unless a global level is set.")
    .define("authentication.method", STRING, "NONE", LOW, validator=one_of("NONE", "BASIC", ignore_case=True))
    .doc("BASIC: every request needs a name and a password, which the section SchemaRegistry of the JAAS file names.")
    .define("java.security.auth.login.config", STRING, None, LOW)
    .doc("The JAAS file with the section SchemaRegistry.")
)


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """A registry's configuration: the given strings, and their typed values."""

    given: Mapping[str, str] = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Parse the configuration. Raises ConfigError, whose ``messages`` are all problems, and ServiceError for
        invalid listeners.
        """
        judged = REGISTRY.validate(given)
        problems = [error for one in judged for error in one.errors]
        try:
            SecurityProperties.of(with_prefix(given, _PREFIX)).read()
        except ValueError as error:
            problems.append(f"Invalid value for configuration kafkastore.security.protocol or a related key: {error}")
        if problems:
            raise ConfigError(*problems)
        made = cls(dict(given), {one.name: one.value for one in judged})
        _ = made.listeners
        return made

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def bootstrap(self) -> str:
        """The brokers, separated by commas."""
        return ",".join(self.values["kafkastore.bootstrap.servers"])

    @property
    def security(self) -> SecurityProperties:
        """The security settings with which the registry connects to the cluster."""
        return SecurityProperties.of(with_prefix(self.given, _PREFIX))

    @property
    def listeners(self) -> list[Listener]:
        """The listeners of the API. Raises ServiceError."""
        return parse_listeners(",".join(self.values["listeners"]), _PORT)

    @property
    def unknown(self) -> list[str]:
        """The given settings that have no effect: misspelled, or known only to Confluent's registry."""
        return [name for name in self.given if name not in self.values and not name.startswith(_OTHER_PREFIXES)]

    @property
    def level(self) -> Level:
        """The compatibility level that applies if neither the subject nor the registry has a configured level."""
        return Level(self.values["schema.compatibility.level"].upper())

    @property
    def jaas_file(self) -> Path | None:
        """The JAAS file that names the users' file; None if the API needs no login. Raises ServiceError."""
        if self.values["authentication.method"].upper() == "NONE":
            return None
        return jaas_file_of(self.given)
