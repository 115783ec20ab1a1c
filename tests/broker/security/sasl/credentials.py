"""SCRAM users and tokens in a dictionary, and mechanisms that use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parley.broker.config import BrokerConfig
from parley.broker.security.sasl.credential_source import TokenLogin
from parley.broker.security.sasl.decoy import TOKEN_FORM, Form, decoy_credential
from parley.broker.security.sasl.mechanism import Mechanism, MechanismSetup
from parley.broker.security.sasl.plugins import maker
from parley.protocol.security.scram import HASHES, ScramCredential, credential_of, salted_password

SALT = b"a salt of a user"
WALL_MS = 1_700_000_000_000


def credential(mechanism: str, password: str, iterations: int = 4096) -> ScramCredential:
    salted = salted_password(mechanism, password.encode(), SALT, iterations)
    return credential_of(mechanism, salted, SALT, iterations)


@dataclass
class Users:
    """A credential source with these passwords and tokens."""

    passwords: Mapping[str, str] = field(default_factory=dict)
    tokens: Mapping[str, TokenLogin] = field(default_factory=dict)
    iterations: int = 4096

    def scram(self, mechanism: str, user: str) -> ScramCredential | None:
        password = self.passwords.get(user)
        return None if password is None else credential(mechanism, password, self.iterations)

    def token(self, mechanism: str, token_id: str) -> TokenLogin | None:
        return self.tokens.get(token_id)

    def decoy(self, mechanism: str, user: str, *, is_token: bool = False) -> ScramCredential:
        return decoy_credential(b"secret", mechanism, user, [TOKEN_FORM if is_token else Form(self.iterations)])


def mechanism(
    name: str,
    users: Users | None = None,
    *,
    options: Mapping[str, str] | None = None,
    handler: str = "",
    properties: Mapping[str, str] | None = None,
) -> Mechanism:
    """Return a mechanism as a listener creates it."""
    return maker(name)(
        MechanismSetup(
            name,
            BrokerConfig.from_properties(properties or {}),
            users or Users(),
            lambda: WALL_MS,
            options=options or {},
            callback_handler=handler,
        )
    )


SCRAM = tuple(HASHES)
