"""The interface of SASL mechanisms, which other packages can implement (entry points ``parley.sasl_mechanisms``).

An entry point refers to a function that returns a ``Mechanism`` for a ``MechanismSetup``. The entry point's name is the
name of the mechanism in ``sasl.enabled.mechanisms``. The broker calls the function when it starts, for each listener
that offers the mechanism, and again when the configuration of the listener changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Protocol

from parley.broker.config import BrokerConfig
from parley.broker.security.principal import Principal
from parley.broker.security.sasl.credential_source import CredentialSource
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that a completed login has proved. ``expires_at_ms`` is in wall-clock milliseconds, or None if the
    identity does not expire."""

    principal: Principal
    authenticated_by_token: bool = False
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a token: the token for the client. The login is complete if ``identity`` is set."""

    token: bytes
    identity: Identity | None = None


class LoginRefused(Exception):
    """Raised to reject a login.

    The text is for the broker's log and must not contain secrets. ``client_message`` is for the client. If it is empty,
    the client receives a message without a reason, as for every wrong password.
    """

    def __init__(self, reason: str, *, client_message: str = "") -> None:
        super().__init__(reason)
        self.client_message = client_message


class Exchange(Protocol):
    """One login, which processes the client's tokens in turn."""

    user: str
    """The user name that the client claims, for the log; empty until it is known."""

    def evaluate(self, token: bytes) -> Reply | Awaitable[Reply]:
        """Process a client token, and return the reply. Not called again after a reply with an identity.

        A mechanism that must wait for another server or for a thread returns an awaitable. This method, or the
        awaitable, raises LoginRefused to reject the login. Any other exception also fails the login, and is logged as a
        defect.
        """


class Mechanism(Protocol):
    """A SASL mechanism on one listener."""

    def begin(self) -> Exchange:
        """Start a new login, and return the object that processes its tokens."""

    def close(self) -> None:
        """Release the mechanism's resources. Logins that have already started may continue."""


@dataclass(frozen=True, slots=True)
class MechanismSetup:
    """The parameters of a mechanism on a listener.

    ``config`` is the configuration of the listener. ``options`` and ``login_module`` come from the JAAS entry for the
    listener and the mechanism; they are empty without an entry. ``callback_handler`` is the mechanism's
    ``sasl.server.callback.handler.class``, or empty.
    """

    name: str
    config: BrokerConfig
    credentials: CredentialSource
    wall_ms: Callable[[], int]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    login_module: str = ""
    callback_handler: str = ""


MakeMechanism = Callable[[MechanismSetup], Mechanism]
"""Creates a mechanism. Raises ConfigError if the configuration does not allow it."""
