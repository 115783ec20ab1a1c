"""PLAIN (RFC 4616): the client sends its password. The JAAS entry lists the users, as ``user_<name>="<password>"``.

Unknown users and wrong passwords get the same response after the same amount of work.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from typing import Protocol

from parley.broker.security.principal import user
from parley.broker.security.sasl.mechanism import Exchange, Identity, LoginRefused, Mechanism, MechanismSetup, Reply
from parley.broker.security.sasl.plugins import load_callback_handler
from parley.protocol.security.passwords import Passwords

WRONG = "Authentication failed: Invalid username or password"
USER_PREFIX = "user_"


class PasswordVerifier(Protocol):
    """Verifies passwords: the interface of ``sasl.server.callback.handler.class`` for PLAIN."""

    def verify(self, name: str, password: str) -> bool | Awaitable[bool]:
        """Return True if ``password`` is the user's password. May return an awaitable instead."""


class PlainMechanism:
    """The PLAIN mechanism with the users of a JAAS entry, or with the operator's own verifier."""

    def __init__(self, verifier: PasswordVerifier) -> None:
        self._verifier = verifier

    def begin(self) -> Exchange:
        return PlainExchange(self._verifier)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def jaas_users(options: Mapping[str, str]) -> Passwords:
    """Return the users in the options of a JAAS entry, ``user_<name>="<password>"``."""
    return Passwords(
        {key.removeprefix(USER_PREFIX): value for key, value in options.items() if key.startswith(USER_PREFIX)}
    )


class PlainExchange:
    """One login: a single token that contains the authorization id, the user and the password, separated by
    zero bytes."""

    def __init__(self, verifier: PasswordVerifier) -> None:
        self.user = ""
        self._verifier = verifier

    def evaluate(self, token: bytes) -> Reply | Awaitable[Reply]:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise LoginRefused("the token is not UTF-8") from None
        if len(parts) != 3:
            raise LoginRefused(f"the token has {len(parts)} parts instead of 3")
        authorization_id, self.user, password = parts
        if not self.user:
            raise LoginRefused("the user name is empty", client_message="Authentication failed: username not specified")
        if not password:
            raise LoginRefused("the password is empty", client_message="Authentication failed: password not specified")
        verified = self._verifier.verify(self.user, password)
        if inspect.isawaitable(verified):
            return self._await(verified, authorization_id)
        return self._reply(verified, authorization_id)

    async def _await(self, verified: Awaitable[bool], authorization_id: str) -> Reply:
        return self._reply(await verified, authorization_id)

    def _reply(self, is_verified: bool, authorization_id: str) -> Reply:
        if is_verified is not True:
            raise LoginRefused("wrong user or password", client_message=WRONG)
        if authorization_id not in ("", self.user):
            raise LoginRefused(
                "the authorization id differs from the user name",
                client_message="Authentication failed: Client requested an authorization id that is different from "
                "username",
            )
        return Reply(b"", Identity(user(self.user)))


def make(setup: MechanismSetup) -> Mechanism:
    """Return the PLAIN mechanism for a listener. Raises ConfigError if the callback handler cannot be loaded."""
    if setup.callback_handler:
        return PlainMechanism(load_callback_handler(setup, "verify"))
    return PlainMechanism(jaas_users(setup.options))
