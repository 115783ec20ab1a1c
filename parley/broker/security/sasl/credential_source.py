"""The source of the credentials against which the SCRAM mechanisms verify logins."""

from __future__ import annotations

from typing import Protocol

from parley.broker.security.principal import Principal
from parley.light_dataclasses import dataclass
from parley.protocol.security.scram import ScramCredential


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """A delegation token that has not expired. ``expires_at_ms`` is in wall-clock milliseconds."""

    owner: Principal
    credential: ScramCredential
    expires_at_ms: int


class CredentialSource(Protocol):
    """Looks up credentials. Its methods neither block nor raise."""

    def scram(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return the credential of a user for a mechanism, or None if the user has none."""

    def token(self, mechanism: str, token_id: str) -> TokenLogin | None:
        """Return the credential of a delegation token (KIP-48), or None if the token does not exist or has expired."""

    def decoy(self, mechanism: str, user: str, *, is_token: bool = False) -> ScramCredential:
        """Return a credential for a user or token that does not exist. A client cannot distinguish it from a real
        credential.

        It is the same in each call and on each broker, and has the form of stored credentials.
        """
