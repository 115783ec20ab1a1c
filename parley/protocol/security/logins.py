"""The client's side of SASL, without I/O: PLAIN, SCRAM and OAUTHBEARER.

An ``Exchange`` is a generator: it yields the bytes for the server, and receives the server's response. It returns after
the last response. It raises ``LoginRefused`` if a response shows that the server rejects the client, or that the server
does not know the user's credentials. Whether the login has succeeded is reported outside the exchange, by Kafka's
protocol.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import field
from typing import Protocol

from parley.light_dataclasses import dataclass
from parley.protocol.security import scram

__all__ = ["BearerLogin", "BearerToken", "Exchange", "Login", "LoginRefused", "PlainLogin", "ScramLogin", "TokenSource"]

Exchange = Generator[bytes, bytes, None]

_ITERATIONS_MAX = 4 * scram.ITERATIONS_MAX
"""The maximum number of iterations that a client computes for a server. They take tens of milliseconds."""


class LoginRefused(Exception):
    """The server rejects the login or does not prove that it knows the user, or the client has no credentials. The
    message contains no secret."""


class Login(Protocol):
    """The credentials of a client for one mechanism, used for each connection."""

    @property
    def mechanism(self) -> str:
        """The name of the SASL mechanism."""
        ...

    async def exchange(self, host: str = "") -> Exchange:
        """Start a login at the broker on this host. Raises LoginRefused if there are currently no credentials."""
        ...


@dataclass(frozen=True, slots=True)
class PlainLogin:
    """A login with a user name and a password, which are sent in clear text: for use over TLS only."""

    username: str
    password: str = field(repr=False)
    mechanism: str = "PLAIN"

    async def exchange(self, host: str = "") -> Exchange:
        """Start a login. ``host`` is ignored."""
        return self._exchange()

    def _exchange(self) -> Exchange:
        yield f"\0{self.username}\0{self.password}".encode()


class ScramLogin:
    """A login with a user name and a password that never leaves the client (RFC 5802).

    With ``is_token``, they are the id and the HMAC of a delegation token (KIP-48). The salted password is cached,
    because it takes milliseconds to compute and is the same for most logins.
    """

    def __init__(
        self,
        mechanism: str,
        username: str,
        password: str,
        *,
        is_token: bool = False,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        self.mechanism = mechanism
        self.username = username
        self.password = password
        self.is_token = is_token
        self._nonce = nonce
        self._salted: tuple[bytes, int, bytes] | None = None

    async def exchange(self, host: str = "") -> Exchange:
        """Start a login. ``host`` is ignored."""
        return self._exchange()

    def _exchange(self) -> Exchange:
        nonce = self._nonce()
        first = f"n={scram.encode_name(self.username)},r={nonce}" + (",tokenauth=true" if self.is_token else "")
        challenge = yield f"n,,{first}".encode()
        parts = _attributes(challenge)
        salt, iterations, whole_nonce = _salt(parts), _iterations(parts), parts.get("r", "")
        if not whole_nonce.startswith(nonce) or whole_nonce == nonce:
            raise LoginRefused("the server responded with a different nonce")
        salted = self._salt_with(salt, iterations)
        bare = f"c=biws,r={whole_nonce}"
        message = b",".join((first.encode(), challenge, bare.encode()))
        proof = base64.b64encode(scram.client_proof(self.mechanism, salted, message)).decode()
        final = _attributes((yield f"{bare},p={proof}".encode()))
        signature = scram.server_signature(self.mechanism, scram.server_key_of(self.mechanism, salted), message)
        if not hmac.compare_digest(_decoded(final.get("v", "")), signature):
            raise LoginRefused("the server does not know the user's credentials: it may be an impostor")

    def _salt_with(self, salt: bytes, iterations: int) -> bytes:
        if self._salted is None or self._salted[:2] != (salt, iterations):
            salted = scram.salted_password(self.mechanism, self.password.encode(), salt, iterations)
            self._salted = (salt, iterations, salted)
        return self._salted[2]


def _attributes(message: bytes) -> dict[str, str]:
    """Return the attributes of a SCRAM message from the server. Raises LoginRefused if it is an error or malformed."""
    try:
        parts = [part.partition("=") for part in message.decode().split(",")]
    except UnicodeDecodeError as error:
        raise LoginRefused("the server's message is not a SCRAM message") from error
    found = {name: value for name, equals, value in parts if equals}
    if "e" in found:
        raise LoginRefused(found["e"])
    if "m" in found:
        raise LoginRefused("the server requires an unsupported SCRAM extension")
    return found


def _salt(parts: Mapping[str, str]) -> bytes:
    if not (salt := _decoded(parts.get("s", ""))):
        raise LoginRefused("the server's message is not a SCRAM message")
    return salt


def _iterations(parts: Mapping[str, str]) -> int:
    text = parts.get("i", "")
    if not text.isdecimal() or not scram.ITERATIONS_MIN <= int(text) <= _ITERATIONS_MAX:
        raise LoginRefused(f"the server's iteration count is not between {scram.ITERATIONS_MIN} and {_ITERATIONS_MAX}")
    return int(text)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token for OAUTHBEARER, and the SASL extensions sent with it (KIP-342)."""

    value: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)


class TokenSource(Protocol):
    """The source of a client's tokens."""

    async def token(self) -> BearerToken:
        """Return a token that is still valid. Raises LoginRefused if no token can be obtained."""
        ...


@dataclass(frozen=True, slots=True)
class BearerLogin:
    """A login with a token (RFC 7628)."""

    tokens: TokenSource
    mechanism: str = "OAUTHBEARER"

    async def exchange(self, host: str = "") -> Exchange:
        """Start a login with a token from the source. Raises LoginRefused if no token can be obtained."""
        return self._exchange(await self.tokens.token())

    def _exchange(self, token: BearerToken) -> Exchange:
        pairs = "".join(f"{name}={value}\x01" for name, value in token.extensions.items())
        refusal = yield f"n,,\x01auth=Bearer {token.value}\x01{pairs}\x01".encode()
        if refusal:
            yield b"\x01"  # the server then sends its error, with the details
