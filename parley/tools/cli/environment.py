"""``parley start --from-environment``: environment variables as a broker's configuration, as in Kafka's images.

Rules:

1. ``KAFKA_LOG_RETENTION_MS`` sets ``log.retention.ms``. The prefix ``PARLEY_`` has the same effect. ``_`` becomes a
   dot, ``__`` becomes ``_``, and ``___`` becomes ``-``, as in Kafka's image. Variables of its start scripts are not
   settings.
2. ``--override`` overrides variables, variables override the file, and the file overrides the image's defaults.
3. ``${pod:name}``, ``${pod:ordinal}`` and ``${pod:ordinal+N}`` in a value are replaced using the host name, which a
   StatefulSet assigns to its pods. ``${file:...}``, ``${dir:...}`` and ``${env:...}`` need no declaration.
4. Variables that contradict each other, or that name no key, are errors, because a warning in the log of a container
   that seems to work would go unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from parley.broker.config.broker_keys import BrokerKeys
from parley.broker.config.key_definition import closest
from parley.broker.config.presets import ALONE, CONTAINER
from parley.broker.config.retired import why_retired
from parley.configuration.providers import is_about_providers
from parley.tools.cli.invocation import CommandError

if TYPE_CHECKING:
    from parley.broker.config import BrokerConfig

MOUNTED: Final = "/etc/parley/broker.properties"
"""The path at which an image expects the optional configuration file."""

PREFIXES: Final = ("KAFKA_", "PARLEY_")

OF_JAVA: Final = frozenset(
    {
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)
"""Variables of Kafka's start scripts that concern Java."""
OF_COMMANDS: Final = frozenset({"PARLEY_CONSUL", "PARLEY_ETCD", "PARLEY_PROFILE", "PARLEY_PURE", "PARLEY_ZOOKEEPER"})
"""Variables of other commands and of the build."""

PROVIDERS: Final[Mapping[str, str]] = {
    "config.providers": "file,dir,env",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    "config.providers.dir.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}
"""The config providers that are available if the configuration declares none."""

_SERVICE_LINK: Final = re.compile(
    r"\w+?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)=.*|\w+?_PORT=\w+://.*"
)
"""The pattern of variables that Kubernetes sets in pods for each Service: a Service ``kafka`` sets
``KAFKA_PORT=tcp://...``."""
_OF_KEY: Final = re.compile(r"_{1,3}")
_SIGNS: Final = {"_": ".", "__": "_", "___": "-"}
_POD: Final = re.compile(r"\$\{pod:([^}]*)\}")
_ORDINAL: Final = re.compile(r"-(\d+)$")
_FROM_ORDINAL: Final = re.compile(r"ordinal(?:\+(\d+))?")


def key_of(variable: str) -> str:
    """Return the configuration key that a variable sets. The variable must start with one of ``PREFIXES``."""
    name = next(variable.removeprefix(prefix) for prefix in PREFIXES if variable.startswith(prefix))
    return _OF_KEY.sub(lambda found: _SIGNS[found[0]], name.lower())


def settings_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in the variables, by key. Raises CommandError if two variables set a key to different
    values."""
    found: dict[str, str] = {}
    origin: dict[str, str] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIXES) or variable in OF_JAVA | OF_COMMANDS:
            continue
        if _SERVICE_LINK.fullmatch(f"{variable}={value}"):
            continue
        key = key_of(variable)
        if found.setdefault(key, value) != value:
            raise CommandError(f"{origin[key]} and {variable} both set {key}, to different values. Remove one of them.")
        origin.setdefault(key, variable)
    return found


def without_effect(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each Java variable that is set. It tells the operator that the variable has no effect."""
    return [f"{name} has no effect: it configures Java." for name in sorted(OF_JAVA & environment.keys())]


def merged(
    environment: Mapping[str, str],
    in_file: Mapping[str, str] | None,
    overrides: Mapping[str, str],
    host_name: str,
) -> dict[str, str]:
    """Merge the settings of a broker in a container, as the rules of this module say. ``in_file`` is None if there is
    no file. Raises CommandError if variables contradict each other, or a reference to the pod cannot be resolved."""
    given = {**(in_file or {}), **settings_in(environment), **overrides}
    addresses = () if "listeners" not in given else ("listeners", "advertised.listeners")
    base = {key: value for key, value in CONTAINER.items() if key not in addresses}
    if in_file is None and not {"coordination.url", "zookeeper.connect"} & given.keys():
        base |= ALONE
    if "log.dir" in given:
        base.pop("log.dirs")
    if not any(key.startswith("config.providers") for key in given):
        base |= PROVIDERS
    return {key: resolve_pod_references(key, value, host_name) for key, value in {**base, **given}.items()}


def resolve_pod_references(key: str, value: str, host_name: str) -> str:
    """Return the value with its references to the host name resolved. Raises CommandError if the host name has no
    ordinal, or the reference is unknown.

    Only the part of the host name before the first dot is used.
    """
    pod = host_name.partition(".")[0]

    def found(name: re.Match[str]) -> str:
        if name[1] == "name":
            return pod
        wanted = _FROM_ORDINAL.fullmatch(name[1])
        if wanted is None:
            raise CommandError(
                f"{key}: {name[0]} is not one of ${{pod:name}}, ${{pod:ordinal}} and ${{pod:ordinal+N}}."
            )
        ordinal = _ORDINAL.search(pod)
        if ordinal is None:
            raise CommandError(
                f"{key}: {name[0]} needs a host name that ends with a number, such as parley-0, and this one is {pod}. "
                "Run the broker in a StatefulSet, or set the host name of the container."
            )
        return str(int(ordinal[1]) + int(wanted[1] or 0))

    return _POD.sub(found, value)


def refuse_unknown(environment: Mapping[str, str], config: BrokerConfig) -> None:
    """Raise CommandError, with one line per variable, if variables would set unknown keys."""
    lines = []
    for variable in sorted(environment):
        key = key_of(variable) if variable.startswith(PREFIXES) else ""
        if key in config.static and not _is_known(key, config):
            meant = closest(key, BrokerKeys.KEYS)
            hint = f" Did you mean {variable_of(meant)}?" if meant else ""
            lines.append(f"{variable} would set {key}, which is not a configuration key.{hint}")
    if lines:
        raise CommandError("\n".join(lines))


def _is_known(key: str, config: BrokerConfig) -> bool:
    return config.key(key) is not None or why_retired(key) is not None or is_about_providers(key)


def variable_of(key: str) -> str:
    """Return the variable (``PARLEY_...``) that sets a key."""
    signs = {sign: text for text, sign in _SIGNS.items()}
    return "PARLEY_" + "".join(signs.get(each, each) for each in key).upper()
