"""The credentials against which logins are verified: the SCRAM users and the delegation tokens in the cluster's
metadata."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64encode
from collections.abc import Callable
from typing import Final

from parley.broker.config import BrokerConfig
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.security.sasl.credential_source import TokenLogin
from parley.broker.security.sasl.decoy import TOKEN_FORM, Form, decoy_credential, form_of
from parley.protocol.security.scram import HASHES, ITERATIONS_MIN, ScramCredential, credential_of, salted_password

DECOY_SECRET: Final = "decoy"
"""The name of the cluster secret from which the salts of nonexistent users are derived."""


class LoginCredentials:
    """The credentials that this broker has received from the controller (a ``CredentialSource``).

    Other brokers, including the controller, log in before this broker has received metadata from the controller. Until
    then this broker uses the credentials in ``stored``, which the broker reads from the coordination store when it
    starts.
    """

    def __init__(self, metadata: Metadata, config: BrokerConfig, wall_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._first_image = metadata.image
        self.stored: MetadataImage | None = None
        self._token_key = token_key(config)
        self._wall_ms = wall_ms
        self._own_secret = secrets.token_bytes(32)
        self._counted: object = None
        self._forms: dict[str, set[Form]] = {}
        self._token_credentials: dict[tuple[str, str], ScramCredential] = {}

    @property
    def _image(self) -> MetadataImage:
        image = self._metadata.image
        return self.stored if self.stored is not None and image is self._first_image else image

    def scram(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return the credential of a user for a mechanism, or None if the user has none."""
        return self._image.scram_users.get(user, {}).get(mechanism)

    def token(self, mechanism: str, token_id: str) -> TokenLogin | None:
        """Return the credential of a delegation token (KIP-48), or None if the token does not exist or has expired."""
        token = self._image.delegation_tokens.get(token_id)
        if token is None or self._token_key is None or min(token.expires_ms, token.max_ms) < self._wall_ms():
            return None
        credential = self._token_credentials.get((mechanism, token_id))
        if credential is None:
            if len(self._token_credentials) >= TOKENS_CACHED_MAX:
                self._token_credentials.clear()
            credential = _credential_of_token(mechanism, token_hmac(self._token_key, token_id))
            self._token_credentials[mechanism, token_id] = credential
        return TokenLogin(token.owner, credential, min(token.expires_ms, token.max_ms))

    def decoy(self, mechanism: str, user: str, *, is_token: bool = False) -> ScramCredential:
        """Return a credential for a user or token that does not exist. A client cannot distinguish it from a real
        credential."""
        image = self._image
        if image.scram_users is not self._counted:
            users = self._counted = image.scram_users
            self._forms = {
                each: {form_of(stored[each]) for stored in users.values() if each in stored} for each in HASHES
            }
        secret = image.secrets.get(DECOY_SECRET, self._own_secret)
        return decoy_credential(secret, mechanism, user, [TOKEN_FORM] if is_token else self._forms[mechanism])


TOKENS_CACHED_MAX: Final = 10_000
"""The maximum number of token credentials that a broker caches. Computing one takes milliseconds."""


def token_key(config: BrokerConfig) -> bytes | None:
    """Return the secret with which tokens are signed, or None if delegation tokens are disabled."""
    password = config.delegation_token_secret_key or config.delegation_token_master_key
    return None if password is None else password.value.encode()


def token_hmac(key: bytes, token_id: str) -> bytes:
    """Return a token's secret, which its owner receives: HMAC-SHA-512 of the id, as in Kafka."""
    return hmac.digest(key, token_id.encode(), hashlib.sha512)


def _credential_of_token(mechanism: str, secret: bytes) -> ScramCredential:
    """Return the credential of a client whose password is the base64 of the token's secret. The salt is derived."""
    salt = hmac.digest(secret, b"salt", hashlib.sha256)
    return credential_of(
        mechanism, salted_password(mechanism, b64encode(secret), salt, ITERATIONS_MIN), salt, ITERATIONS_MIN
    )
