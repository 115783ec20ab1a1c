"""Options that several commands share, with Kafka's names."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import Format

if TYPE_CHECKING:
    from parley.protocol.security.client_security import ClientSecurity

T = TypeVar("T")

CLIENT_SETTINGS: Final = (
    "acks",
    "allow.auto.create.topics",
    "auto.offset.reset",
    "batch.size",
    "bootstrap.servers",
    "client.id",
    "client.rack",
    "compression.type",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.idempotence",
    "fetch.max.bytes",
    "fetch.min.bytes",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "isolation.level",
    "linger.ms",
    "max.poll.interval.ms",
    "max.request.size",
    "partition.assignment.strategy",
    "request.timeout.ms",
    "retries",
    "sasl.jaas.config",
    "sasl.kerberos.service.name",
    "sasl.login.callback.handler.class",
    "sasl.mechanism",
    "sasl.oauthbearer.token.endpoint.url",
    "security.protocol",
    "session.timeout.ms",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
    "transactional.id",
)
"""The most frequently used settings of Kafka's Java clients. A warning about an unknown setting suggests the most
similar of them."""

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

BootstrapServer = Annotated[
    str,
    typer.Option("--bootstrap-server", "--broker-list", help="Brokers to connect to first: host:port,host:port,..."),
]
OnlyBootstrapServer = Annotated[
    str, typer.Option("--bootstrap-server", help="Brokers to connect to first: host:port,host:port,...")
]
"""For commands whose ``--broker-list`` takes broker ids."""
CommandConfig = Annotated[
    Path | None, typer.Option("--command-config", help="Properties file for the client of this command.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the log of the client library.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
"""For commands that print one object per line while they run."""
OutputFormat = Annotated[
    Format | None, typer.Option("--output", help="Print this instead of text; --json stands for --output json.")
]
"""For commands that list or describe, and print with ``print_data``. The parameter must be called ``output_format``."""


def one_action(**actions: object) -> str:
    """Return the name of the only action that is set. Raises ``CommandError`` if none or several are set."""
    flags = {name: f"--{name.replace('_', '-')}" for name in actions}
    chosen = [name for name, is_set in actions.items() if is_set]
    if len(chosen) != 1:
        given = f", not {' and '.join(flags[name] for name in chosen)} together" if chosen else ""
        raise CommandError(f"Name exactly one of {', '.join(flags.values())}{given}.")
    return chosen[0]


def required(value: T | None, option: str, action: str) -> T:
    """Return the value of an option that the action requires. Raises ``CommandError`` if it was not given or is
    empty."""
    if not value:
        raise CommandError(f"--{action.replace('_', '-')} needs {option}.")
    return value


def broker_ids(text: str, option: str) -> list[int]:
    """Parse broker ids such as ``0,1,2``. Raises ``CommandError``, which names ``option``, if one is not a number."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise CommandError(f"{option} takes broker ids such as 0,1,2, not '{text}'.") from error


def client_properties(path: Path | None) -> dict[str, str]:
    """Read the settings of a client from a properties file. Returns no settings if ``path`` is None. Raises
    ``CommandError`` if the file cannot be read, or a config provider cannot supply a value."""
    if path is None:
        return {}
    from parley.configuration.providers import UnresolvedValue, read_configuration

    try:
        return read_configuration(path)
    except UnresolvedValue as error:
        raise CommandError(f"{path}: {error}.") from error
    except OSError as error:
        raise CommandError(f"The file {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"The file {path} is not a properties file: {error}.") from error


def security_of(properties: Mapping[str, str], option: str) -> ClientSecurity:
    """Return the security settings of a client. Raises ``CommandError`` if they are invalid; its message names
    ``option``, the option that takes the properties file."""
    from parley.protocol.security.client_security import client_security

    try:
        return client_security(properties)
    except ValueError as error:
        raise CommandError(f"{option}: {error}.") from error


def warn_ignored(names: Iterable[str], kind: str = "client settings") -> None:
    """Warn about settings that have no effect here, in one line. Prints nothing if there are none.

    Settings that declare config providers are not mentioned, because they took effect when the file was read. If a name
    resembles one of ``CLIENT_SETTINGS``, the warning suggests that setting.
    """
    from parley.configuration.providers import is_about_providers

    shown = ", ".join(_with_suggestion(name) for name in sorted(names) if not is_about_providers(name))
    if shown:
        print(f"Warning: these {kind} have no effect here: {shown}.", file=sys.stderr)


def is_misspelled(name: str) -> bool:
    """Return True if neither Kafka's clients nor its brokers have such a setting, but the clients have a similar
    one."""
    if not _meant(name):
        return False
    from parley.broker.config.broker_keys import BrokerKeys  # slow to import, and needed for rare settings only

    return name not in BrokerKeys.KEYS


def _with_suggestion(name: str) -> str:
    meant = _meant(name)
    return f"{name} (did you mean {meant[0]}?)" if meant else name


def _meant(name: str) -> list[str]:
    from difflib import get_close_matches  # slow to import, and needed for mistakes only

    return [] if name in CLIENT_SETTINGS else get_close_matches(name, CLIENT_SETTINGS, n=1, cutoff=0.8)
