"""The keys of a worker's REST API, with Kafka's names and defaults: addresses, TLS, logins.

TLS keys are ``listeners.https.ssl.*``, or, if none of these is given, the worker's own ``ssl.*``; for
``admin.listeners`` they are ``admin.listeners.https.ssl.*``.
"""

from __future__ import annotations

from typing import Any, Final

from parley.pipeline.connect.config import INT, LIST, LOW, STRING, ConfigDef, one_of
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.service.login import JAAS_FILE

BASIC_AUTH: Final = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
LISTENERS_TLS: Final = "listeners.https."
ADMIN_TLS: Final = "admin.listeners.https."
REST_TLS: Final = (LISTENERS_TLS, ADMIN_TLS)
"""The prefix of the keys for the REST API's TLS."""


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
