"""The subject of the checks: a broker's settings and other facts about it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from parley.broker.config import BrokerConfig
from parley.broker.config.listeners import ListenerAddress
from parley.broker.security.acls.bindings import AclBinding
from parley.consensus.protection import Protection

PROPERTIES_FILE = "the properties file"
"""The ``FileMode.key`` of the properties file itself. It counts as a secret only if it contains one."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A part that was not checked, and why. ``has_failed`` is False if the other form of the command checks it."""

    text: str
    has_failed: bool = True


@dataclass(frozen=True, slots=True)
class FileMode:
    """A file or a folder, and its permissions. ``key`` is the setting that names it."""

    key: str
    path: str
    mode: int
    is_reachable: bool = True
    """False if a folder above it denies access to users other than its owner and its group."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The settings of a broker, and other facts; None or empty if a fact could not be determined.

    ``name`` is the file or the broker. ``written`` contains the settings as in the file, with references to secrets
    from config providers. ``certificates`` contains the expiry time of the certificate of each listener with TLS.
    """

    name: str
    config: BrokerConfig
    now: datetime
    written: Mapping[str, str] = field(default_factory=dict)
    secret_files: Sequence[FileMode] = ()
    trust_files: Sequence[FileMode] = ()
    """The files that decide which clients may log in, and their folders."""
    data_folders: Sequence[FileMode] = ()
    certificates: Mapping[str, datetime] = field(default_factory=dict)
    revocation_lists: Mapping[str, datetime] = field(default_factory=dict)
    """The earliest expiry time of the revocation lists, by listener. Contains only listeners that have such lists."""
    refused_between_brokers: str = ""
    """The reason why the brokers would reject the certificate of the listener that they use, or an empty string if they
    would not."""
    has_settings: bool = True
    """False if ``config`` is unknown, so that only the certificates are checked."""
    acls: Sequence[AclBinding] | None = None
    store: Protection | None = None
    strangers: Sequence[str] = ()
    """What clients without an account were able to do."""

    @property
    def listeners(self) -> Sequence[ListenerAddress]:
        """The listeners of the broker."""
        bound: Sequence[ListenerAddress] = self.config.bound
        return bound

    @property
    def addresses(self) -> Sequence[ListenerAddress]:
        """The listeners, and the bootstrap addresses that the brokers of a machine share."""
        return [*self.listeners, *self.config.bootstrap]

    @property
    def inter_broker(self) -> ListenerAddress:
        """The listener that the brokers use among themselves."""
        return next(each for each in self.listeners if each.name == self.config.inter_broker_listener)

    def of_listeners(self) -> Iterator[tuple[ListenerAddress, BrokerConfig]]:
        """Yield each listener with its own settings."""
        for listener in self.listeners:
            yield listener, self.config.for_listener(listener.name)

    def demands_certificate(self, listener: ListenerAddress) -> bool:
        """Return True if clients of the listener need a certificate."""
        if not listener.is_tls:
            return False
        own = self.config.for_listener(listener.name)
        is_set = f"listener.name.{listener.name.lower()}.ssl.client.auth" in self.config.given
        return own.ssl_client_auth == "required" and (is_set or not listener.is_sasl)


def is_local(host: str) -> bool:
    """Return True if the address can be reached only from this machine."""
    return host in LOCAL_HOSTS or host.startswith("127.")
