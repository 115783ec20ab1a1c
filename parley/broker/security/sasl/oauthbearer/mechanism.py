"""OAUTHBEARER (RFC 7628): the client presents a token in the form of a JSON Web Token.

The response to a rejected token is a JSON challenge with an error. The client acknowledges it with one byte, and the
login then fails with that error, as in Kafka. Unsigned tokens are accepted only if the configuration explicitly enables
them.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from parley.broker.config import ConfigError, Problem
from parley.broker.config.errors import MissingExtra
from parley.broker.security.principal import user
from parley.broker.security.sasl.mechanism import Exchange, Identity, LoginRefused, Mechanism, MechanismSetup, Reply
from parley.broker.security.sasl.oauthbearer.token_verifier import TokenRefused, TokenVerifier, VerifiedToken
from parley.broker.security.sasl.plugins import load_callback_handler

# The patterns do not backtrack: a message of half a megabyte that does not match would hold the event loop for 90 ms.
_NAME = r"(?:[^\x00=,]++|=2C|=3D)++"
_PAIRS = r"(?:[A-Za-z]++=[\x21-\x7e \t\r\n]++\x01)*+"
_FIRST: Final = re.compile(rf"n,(?:a=(?P<authzid>{_NAME}))?,\x01(?P<pairs>{_PAIRS})\x01")
_BEARER: Final = re.compile(r"bearer +(?P<token>[-_.a-zA-Z0-9]+)", re.IGNORECASE)
_ACKNOWLEDGED: Final = b"\x01"
_SECURED: Final = "OAuthBearerValidatorCallbackHandler"
_UNSECURED: Final = "OAuthBearerUnsecuredValidatorCallbackHandler"
_UNSECURED_OPTIONS: Final = "unsecuredValidator"


class BearerMechanism:
    """The OAUTHBEARER mechanism with a token verifier."""

    def __init__(self, verifier: TokenVerifier, close: Callable[[], None] = lambda: None) -> None:
        """``close`` is called when the mechanism is closed, to release the resources of the verifier."""
        self._verifier = verifier
        self._close = close

    def begin(self) -> Exchange:
        return BearerExchange(self._verifier)

    def close(self) -> None:
        self._close()


class BearerExchange:
    """One login: the token and, if it is rejected, the acknowledgement of the error."""

    def __init__(self, verifier: TokenVerifier) -> None:
        self.user = ""
        self._verifier = verifier
        self._refused: TokenRefused | None = None

    def evaluate(self, token: bytes) -> Reply | Awaitable[Reply]:
        if self._refused is not None:
            text = _challenge(self._refused).decode() if token == _ACKNOWLEDGED else ""
            raise LoginRefused(str(self._refused), client_message=text)
        authorization_id, bearer = _parsed(token)
        try:
            verified = self._verifier.verify(bearer)
        except TokenRefused as refused:
            return self._refuse(refused)
        if inspect.isawaitable(verified):
            return self._await(verified, authorization_id)
        return self._accept(verified, authorization_id)

    async def _await(self, verified: Awaitable[VerifiedToken], authorization_id: str) -> Reply:
        try:
            return self._accept(await verified, authorization_id)
        except TokenRefused as refused:
            return self._refuse(refused)

    def _accept(self, verified: VerifiedToken, authorization_id: str) -> Reply:
        if not isinstance(verified, VerifiedToken):
            raise TypeError("a verifier must return a VerifiedToken")
        self.user = verified.name
        if authorization_id not in ("", verified.name):
            text = (
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different "
                f"from the token's principal name ({verified.name})"
            )
            raise LoginRefused("the authorization id differs from the name in the token", client_message=text)
        return Reply(b"", Identity(user(verified.name), expires_at_ms=verified.expires_at_ms))

    def _refuse(self, refused: TokenRefused) -> Reply:
        self._refused = refused
        return Reply(_challenge(refused))


def _parsed(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token in a client's first message. Raises LoginRefused."""
    try:
        match = _FIRST.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise LoginRefused("the message is not a valid OAUTHBEARER message")
    pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01")[:-1])
    bearer = _BEARER.fullmatch(pairs.get("auth", "").strip())
    if bearer is None:
        raise LoginRefused("the message contains no bearer token")
    authorization_id = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return authorization_id, bearer["token"]


def _challenge(refused: TokenRefused) -> bytes:
    found = {"status": refused.status} | ({"scope": refused.scope} if refused.scope else {})
    return json.dumps(found, separators=(",", ":")).encode()


def make(setup: MechanismSetup) -> Mechanism:
    """Return the OAUTHBEARER mechanism for a listener. Raises ConfigError if the configuration does not specify how to
    verify tokens, or if what it specifies cannot be used."""
    handler = setup.callback_handler.rpartition(".")[2]
    if handler and handler not in (_SECURED, _UNSECURED):
        return BearerMechanism(load_callback_handler(setup, "verify"))
    if handler == _UNSECURED or (not handler and _asks_for_unsecured(setup)):
        from parley.broker.security.sasl.oauthbearer.unsecured_tokens import UnsecuredVerifier

        return BearerMechanism(UnsecuredVerifier(setup.options, setup.wall_ms))
    if not handler and _has_unsecured_options(setup.options):
        allowed = "without unsecuredValidator... options: sasl.oauthbearer.jwks.endpoint.url requires signed tokens"
        raise ConfigError([Problem("sasl.jaas.config", "[hidden]", allowed)])
    if not setup.config.sasl_oauthbearer_jwks_endpoint_url:
        allowed = (
            "the address of the keys that verify tokens, https://... or file:///...; to accept unsigned tokens, "
            "set sasl.server.callback.handler.class to "
            f"org.apache.kafka.common.security.oauthbearer.internals.unsecured.{_UNSECURED}"
        )
        raise ConfigError([Problem("sasl.oauthbearer.jwks.endpoint.url", "", allowed)])
    try:
        from parley.broker.security.sasl.oauthbearer.signed_tokens import (
            signed_verifier,  # imports PyJWT, which is slow
        )
    except ImportError as error:
        raise ConfigError([MissingExtra("sasl.enabled.mechanisms", "OAUTHBEARER", "security", str(error))]) from error
    verifier = signed_verifier(setup)
    return BearerMechanism(verifier, verifier.close)


def _asks_for_unsecured(setup: MechanismSetup) -> bool:
    return _has_unsecured_options(setup.options) and not setup.config.sasl_oauthbearer_jwks_endpoint_url


def _has_unsecured_options(options: Mapping[str, Any]) -> bool:
    return any(name.startswith(_UNSECURED_OPTIONS) for name in options)
