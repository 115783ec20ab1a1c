"""Client sessions: what the broker knows about the identity of a connection's client."""

from __future__ import annotations

from collections.abc import Hashable

from parley.broker.security.principal import ANONYMOUS, Principal
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientSession:
    """The identity of a client. A re-authentication (KIP-368) replaces the session of its connection.

    ``mechanism`` is the SASL mechanism of the login, or empty. ``expires_at`` is in monotonic seconds, or None if the
    session does not expire. ``parley.broker.security.sasl.login`` decides when a session expires.
    """

    principal: Principal
    host: str
    listener: str
    mechanism: str = ""
    authenticated_by_token: bool = False
    expires_at: float | None = None

    @property
    def is_anonymous(self) -> bool:
        """True if the client has neither logged in nor presented a certificate."""
        return self.principal == ANONYMOUS

    @property
    def user_or_host(self) -> Hashable:
        """The key under which the client's share of the broker's time and memory is counted: its principal, or its host
        if it is anonymous."""
        principal = self.principal
        return self.host if principal is ANONYMOUS or principal == ANONYMOUS else principal  # each request asks


def anonymous(host: str, listener: str) -> ClientSession:
    """Return the session of a client that has neither logged in nor presented a certificate."""
    return ClientSession(ANONYMOUS, host, listener)
