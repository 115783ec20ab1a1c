"""The states of one connection's login (KIP-43, KIP-152, KIP-368), without any I/O.

A connection to a SASL listener begins in START. Until its login is COMPLETE, the client may send ApiVersions once, then
SaslHandshake, then the tokens of the mechanism: in SaslAuthenticate requests, or after SaslHandshake v0 in frames
without headers. In COMPLETE, the client can renew an expiring session with another SaslHandshake, for the same
mechanism and principal. Any other request ends the connection, and so does a failed login.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from enum import IntEnum

from parley.broker.runtime.states import step
from parley.broker.security.sasl.mechanism import Exchange, Identity, LoginRefused, Mechanism, Reply
from parley.broker.security.session import ClientSession
from parley.light_dataclasses import dataclass

REAUTHENTICATION_MIN_S = 1.0
"""The minimum time, in seconds, between two re-authentications of a connection, as in Kafka."""
SHOWN_NAME_MAX = 64
"""The number of characters of a user name shown in a log line. Clients that have not logged in can choose any name."""


class LoginState(IntEnum):
    """The states of a login."""

    START = 0
    """The login waits for ApiVersions or SaslHandshake."""
    VERSIONS_SENT = 1
    """The login waits for SaslHandshake."""
    TOKENS = 2
    """The login waits for SaslAuthenticate."""
    RAW_TOKENS = 3
    """The login waits for a frame that contains a token without a header."""
    COMPLETE = 4
    """The client is logged in."""
    REFUSED = 5
    """The login has failed, and the connection is closing (final)."""


class LoginEvent(IntEnum):
    """An event that changes the ``LoginState``."""

    VERSIONS = 0
    """An ApiVersions request of a supported version."""
    HANDSHAKE = 1
    """SaslHandshake v1 for a mechanism that the listener offers."""
    HANDSHAKE_RAW = 2
    """SaslHandshake v0 for a mechanism that the listener offers."""
    CONTINUE = 3
    """A token that is not the last one."""
    ACCEPT = 4
    """The last token, which proves the identity of the client."""
    REFUSE = 5
    """A failed login, or a request that the state does not allow."""


_START, _VERSIONS_SENT, _TOKENS, _RAW, _COMPLETE, _REFUSED = LoginState

_STEPS: dict[tuple[LoginState, LoginEvent], LoginState] = {
    (_START, LoginEvent.VERSIONS): _VERSIONS_SENT,
    (_START, LoginEvent.HANDSHAKE): _TOKENS,
    (_START, LoginEvent.HANDSHAKE_RAW): _RAW,
    (_START, LoginEvent.REFUSE): _REFUSED,
    (_VERSIONS_SENT, LoginEvent.HANDSHAKE): _TOKENS,
    (_VERSIONS_SENT, LoginEvent.HANDSHAKE_RAW): _RAW,
    (_VERSIONS_SENT, LoginEvent.REFUSE): _REFUSED,
    (_TOKENS, LoginEvent.CONTINUE): _TOKENS,
    (_TOKENS, LoginEvent.ACCEPT): _COMPLETE,
    (_TOKENS, LoginEvent.REFUSE): _REFUSED,
    (_RAW, LoginEvent.CONTINUE): _RAW,
    (_RAW, LoginEvent.ACCEPT): _COMPLETE,
    (_RAW, LoginEvent.REFUSE): _REFUSED,
    (_COMPLETE, LoginEvent.HANDSHAKE): _TOKENS,
    (_COMPLETE, LoginEvent.HANDSHAKE_RAW): _RAW,
    (_COMPLETE, LoginEvent.REFUSE): _REFUSED,
}


@dataclass(frozen=True, slots=True)
class LoginRules:
    """A listener's rules for logins. A login uses the rules that are current at each SaslHandshake."""

    mechanisms: Mapping[str, Mechanism]
    max_reauth_ms: Mapping[str, int]
    """How long a login remains valid, by mechanism (``connections.max.reauth.ms``). Without an entry, or if it is 0, a
    login is valid until its credential expires."""
    receive_bytes_max: int
    """The maximum size of a request before the login is complete (``sasl.server.max.receive.size``)."""
    refusal_delay_s: float
    """The delay before the response to a failed login (``connection.failed.authentication.delay.ms``)."""


class UnsupportedMechanism(LoginRefused):
    """Raised if the client requests a mechanism that the listener does not offer."""


class IllegalRequest(LoginRefused):
    """Raised if the client sends a request that the state of its login does not allow."""


class Login:
    """The login of one connection. Methods that process client input raise LoginRefused to end the connection."""

    def __init__(
        self, rules: LoginRules, session: ClientSession, current: Callable[[], LoginRules | None] = lambda: None
    ) -> None:
        """``session`` is the session of a client that has not logged in. Before each handshake, ``current`` returns the
        rules that replace ``rules``, or None."""
        self.rules = rules
        self._current = current
        self.state = LoginState.START
        self.session = session
        self.is_raw = False
        """True if the client sends tokens without request headers."""
        self.can_reauthenticate = False
        """True if the client learns when its session expires, so that it can re-authenticate in time."""
        self.on_complete: Callable[[bool], None] = lambda again: None
        """Called when the client has logged in, with True if it has re-authenticated. May raise to reject
        the client."""
        self.on_renewal: Callable[[], None] = lambda: None
        """Called when a re-authentication starts."""
        self.on_refused: Callable[[str], None] = lambda reason: None
        """Called with the reason when the login has failed."""
        self._exchange: Exchange | None = None
        self._mechanism = ""
        self._refused_mechanism = ""  # requested for a re-authentication; the token that follows is refused
        self._reauthentication_at: float | None = None

    @property
    def user(self) -> str:
        """The last user name that the client sent, or an empty string. Unverified until the state is COMPLETE."""
        return "" if self._exchange is None else self._exchange.user

    @property
    def mechanism(self) -> str:
        """The mechanism of the last SaslHandshake; empty before the first handshake."""
        return self._mechanism

    @property
    def is_reauthentication(self) -> bool:
        """True if the client has already logged in on this connection."""
        return bool(self.session.mechanism)

    def has_expired(self, now: float) -> bool:
        """Return True if the session has expired, so that the next request must renew it. ``now`` is in monotonic
        seconds."""
        expires_at = self.session.expires_at
        return expires_at is not None and now > expires_at

    def refuse(self, reason: str) -> None:
        """End the login. The caller must close the connection, possibly after a delay."""
        self._step(LoginEvent.REFUSE)
        self.on_refused(reason)

    @property
    def may_ask_for_versions(self) -> bool:
        """True if the client may send ApiVersions before its login is complete."""
        return self.state is _START

    def versions(self) -> None:
        """Process an ApiVersions request of a supported version. Call this only if ``may_ask_for_versions``."""
        self._step(LoginEvent.VERSIONS)

    def handshake(self, mechanism: str, version: int, now: float) -> bool:
        """Process a SaslHandshake request in this API version. Returns False if the client must not re-authenticate
        now. ``now`` is in monotonic seconds.

        Raises UnsupportedMechanism if the listener does not offer the mechanism, and IllegalRequest if a login is in
        progress or has failed.
        """
        if self.state is _COMPLETE and not self._may_reauthenticate(now):
            return False
        if self.state not in (_START, _VERSIONS_SENT, _COMPLETE):
            raise IllegalRequest("SaslHandshake during a login")
        self.rules = self._current() or self.rules
        found = self.rules.mechanisms.get(mechanism)
        if found is None:
            raise UnsupportedMechanism(f"the mechanism {_shown(mechanism)} is not enabled on this listener")
        if self.state is _COMPLETE:
            self._reauthentication_at = now
            self.on_renewal()
            self._refused_mechanism = mechanism if mechanism != self.session.mechanism else ""
        self.is_raw = not version
        self._mechanism = mechanism
        self._exchange = found.begin()
        self._step(LoginEvent.HANDSHAKE if version else LoginEvent.HANDSHAKE_RAW)
        return True

    def _may_reauthenticate(self, now: float) -> bool:
        last = self._reauthentication_at
        return self.session.expires_at is not None and (last is None or now - last >= REAUTHENTICATION_MIN_S)

    def evaluate(self, token: bytes) -> Reply | Awaitable[Reply]:
        """Pass a token to the mechanism, and return its reply. The caller must pass the reply to ``replied``.

        Raises IllegalRequest if no login is in progress, and the errors of ``Exchange.evaluate``, for example
        LoginRefused. Awaiting the reply can raise the same errors.
        """
        if self.state not in (_TOKENS, _RAW) or self._exchange is None:
            raise IllegalRequest("SaslAuthenticate without SaslHandshake")
        if self._refused_mechanism:
            text = (
                f"SASL mechanism '{self._refused_mechanism}' requested by client is not supported for "
                f"re-authentication of mechanism '{self.session.mechanism}'"
            )
            raise LoginRefused("the mechanism differs from the first login's", client_message=text)
        return self._exchange.evaluate(token)

    def replied(self, reply: Reply, *, now: float, wall_ms: int) -> int:
        """Process the mechanism's reply. Returns the lifetime of the session in milliseconds, or 0 if the session does
        not expire or the login is not complete.

        ``now`` is in monotonic seconds, ``wall_ms`` in milliseconds since 1970. Raises LoginRefused if a
        re-authentication has changed the principal, and the errors of ``on_complete``.
        """
        identity = reply.identity
        if identity is None:
            self._step(LoginEvent.CONTINUE)
            return 0
        if self.is_reauthentication and identity.principal != self.session.principal:
            text = (
                "Cannot change principals during re-authentication from "
                f"{self.session.principal.kind}.{self.session.principal.name}: "
                f"{identity.principal.kind}.{identity.principal.name}"
            )
            raise LoginRefused("the principal differs from the first login's", client_message=text)
        before, again = self.session, self.is_reauthentication
        lifetime_ms = self._lifetime_ms(identity, wall_ms)
        self.session = replace(
            self.session,
            principal=identity.principal,
            mechanism=self._mechanism,
            authenticated_by_token=identity.authenticated_by_token,
            expires_at=None if lifetime_ms is None else now + lifetime_ms / 1000,
        )
        self._exchange = None
        self._step(LoginEvent.ACCEPT)
        try:
            self.on_complete(again)
        except Exception:
            self.session = before
            raise
        return lifetime_ms or 0

    def _lifetime_ms(self, identity: Identity, wall_ms: int) -> int | None:
        limits = []
        if max_ms := self.rules.max_reauth_ms.get(self._mechanism, 0):
            limits.append(max_ms)
        if identity.expires_at_ms is not None:
            limits.append(max(1, identity.expires_at_ms - wall_ms))
        return min(limits, default=None)

    def _step(self, event: LoginEvent) -> None:
        self.state = step("login", _STEPS, self.state, event)


def _shown(name: str) -> str:
    return repr(name[:64])
