"""``principal.builder.class``: an operator's own rules for assigning principals, after the login or the TLS
handshake."""

from __future__ import annotations

from importlib import import_module
from typing import Final, Protocol

from parley.broker.config import ConfigError, Problem
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
    module, _, cls = name.rpartition(".")
    try:
        found = getattr(import_module(module), cls)
        if not isinstance(found, type) or not callable(getattr(found, "build", None)):
            raise ConfigError([Problem(_KEY, name, "a class with a method build")])
        made: PrincipalBuilder = found()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the operator's own code can raise anything
        allowed = f"a Python class that can be loaded ({type(error).__name__}: {error})"
        raise ConfigError([Problem(_KEY, name, allowed)]) from error
    return made
