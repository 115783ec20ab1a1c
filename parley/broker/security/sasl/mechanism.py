"""The interface of SASL mechanisms, which other packages can implement (entry points ``parley.sasl_mechanisms``).

An entry point names a function from a ``MechanismSetup`` to a ``Mechanism``; its name is the name of the mechanism in
``sasl.enabled.mechanisms``. The broker calls the function when it starts, for each listener that offers the mechanism,
and again when the configuration of the listener changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from parley.broker.config import BrokerConfig
from parley.broker.security.principal import Principal
from parley.broker.security.sasl.credential_source import CredentialSource


@dataclass(frozen=True, slots=True)
class Identity:
    """What a completed login proved. ``expires_at_ms`` is in wall-clock milliseconds; None if it does not expire."""

    principal: Principal
    authenticated_by_token: bool = False
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The token for the client. The login is complete if there is an ``identity``."""

    token: bytes
    identity: Identity | None = None


class LoginRefused(Exception):
    """The client cannot log in.

    The text is for the broker's log and must not contain secrets. ``told`` is what the client learns; empty means a
    text that does not say why, as for every wrong password.
    """

    def __init__(self, reason: str, *, told: str = "") -> None:
        super().__init__(reason)
        self.told = told


class Exchange(Protocol):
    """One login: takes the tokens of the client in turn."""

    user: str
    """The name that the client claims, for the log; empty until it is known."""

    def evaluate(self, token: bytes) -> Reply | Awaitable[Reply]:
        """Take a token of the client, and return the reply. Not called again after a reply with an identity.

        A mechanism that must wait for another server or for a thread returns an awaitable. Raises LoginRefused. Any
        other exception refuses the login, too, and is logged as a defect.
        """


class Mechanism(Protocol):
    """A SASL mechanism on one listener."""

    def begin(self) -> Exchange:
        """Return the exchange of a new login."""

    def close(self) -> None:
        """Release what the mechanism holds. Logins that have begun may still be evaluated."""


@dataclass(frozen=True, slots=True)
class MechanismSetup:
    """What a mechanism is made from.

    ``config`` is the configuration of the listener. ``options`` and ``login_module`` are those of the JAAS entry for
    the listener and the mechanism; empty without one. ``callback_handler`` is the mechanism's
    ``sasl.server.callback.handler.class``; empty without one.
    """

    name: str
    config: BrokerConfig
    credentials: CredentialSource
    wall_ms: Callable[[], int]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    login_module: str = ""
    callback_handler: str = ""


MakeMechanism = Callable[[MechanismSetup], Mechanism]
"""Makes a mechanism. Raises ConfigError if the configuration does not allow it."""
