"""``principal.builder.class``: an operator's own rules for assigning principals, after the login or the TLS
handshake."""

from __future__ import annotations

from typing import Final, Protocol

from parley.broker.config.plugins import instance_of
from parley.broker.security.principal import Principal
from parley.broker.security.session import ClientSession

_KEY: Final = "principal.builder.class"
_KAFKAS: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"


class PrincipalBuilder(Protocol):
    """Assigns a principal to each client."""

    def build(self, session: ClientSession) -> Principal:
        """Return the principal of a client. ``session`` contains the principal of its login or certificate.

        Must not block. Any exception rejects the client.
        """


def load_principal_builder(name: str | None) -> PrincipalBuilder | None:
    """Return an instance of the class ``name``. Returns None if ``name`` is empty or Kafka's default builder: each
    session then keeps its principal.

    Raises ConfigError if the class cannot be loaded.
    """
    name = (name or "").strip()
    if name in ("", _KAFKAS):
        return None
    builder: PrincipalBuilder = instance_of(_KEY, name, "build")
    return builder
