"""Encryption of passwords that are set while brokers run, before they reach the store (``password.encoder.secret``).

1. A sealed value is text: ``sealed:1:<iterations>:<salt>:<nonce>:<ciphertext>``, AES-256-GCM under a key that
   PBKDF2-HMAC-SHA512 derives from the secret. It is bound to its broker and configuration key, and cannot be opened
   under another one.
2. Values of unknown keys may be passwords, so they are sealed, too. Without a secret all values are stored
   unencrypted, as in Kafka since 4.0.
3. A value that was sealed with ``password.encoder.old.secret`` can also be opened. Setting it again seals it with the
   new secret.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.errors import ConfigError, MissingExtra

_log = logging.getLogger(__name__)

PREFIX: Final = "sealed:1:"
"""The prefix of each sealed value. The controller does not accept such values from clients."""
_SALT: Final = os.urandom(16)
"""One salt per process, so that each process derives its key only once."""
_NONCE_BYTES: Final = 12
ITERATIONS_MAX: Final = 100_000
"""The maximum number of iterations of a stored value, unless the configuration specifies more. Every broker derives the
key on its event loop, and the value may be damaged."""


class UnreadablePasswords(NamedTuple):
    """The keys whose stored values cannot be decrypted, so that they have no effect."""

    cluster_default: frozenset[str] = frozenset()
    per_broker: frozenset[str] = frozenset()


class PasswordSeal:
    """Seals and opens the password values in the entries of a broker, or of all brokers (the name "")."""

    def __init__(self, config: BrokerConfig) -> None:
        """Read the secrets from ``config``. Raises ConfigError if a secret is configured, but the encryption library is
        not installed."""
        self._config = config
        self._iterations = config.password_encoder_iterations
        given = (config.password_encoder_secret, config.password_encoder_old_secret)
        self._secrets = [each.value.encode() for each in given if each is not None]
        self._seals = given[0] is not None
        if self._secrets:
            _check_library()

    def seal(self, broker: str, entries: Mapping[str, str]) -> dict[str, str]:
        """Return the entries as they are stored. If ``password.encoder.secret`` is set, passwords and the values of
        unknown keys are encrypted, unless they already are.

        ``broker`` is the broker's id as text, or "" if the entries are those of all brokers.
        """
        return {name: self._sealed(broker, name, text) for name, text in entries.items()}

    def open(self, broker: str, entries: Mapping[str, str]) -> dict[str, str]:
        """Return stored entries with decrypted passwords. Entries that cannot be decrypted are omitted and logged.

        ``broker`` must have the same value as in the call of ``seal``.
        """
        opened = {}
        for name, text in entries.items():
            if not text.startswith(PREFIX):
                opened[name] = text
            elif (found := self._opened(broker, name, text)) is not None:
                opened[name] = found
            else:
                _log.error(
                    "a stored password cannot be decrypted: it was set with another password.encoder.secret",
                    extra={"key": name, "broker": broker or "all"},
                )
        return opened

    def _sealed(self, broker: str, name: str, text: str) -> str:
        key = self._config.key(name)
        if not self._seals or (key is not None and not key.is_sensitive) or text.startswith(PREFIX):
            return text
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        cipher = AESGCM(_derived(self._secrets[0], _SALT, self._iterations))
        encrypted = cipher.encrypt(nonce, text.encode(), _place(broker, name))
        parts = (str(self._iterations), *(base64.b64encode(part).decode() for part in (_SALT, nonce, encrypted)))
        return PREFIX + ":".join(parts)

    def _opened(self, broker: str, name: str, text: str) -> str | None:
        if not self._secrets:
            return None
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            iterations, *parts = text.removeprefix(PREFIX).split(":")
            salt, nonce, encrypted = (base64.b64decode(part, validate=True) for part in parts)
            if int(iterations) > max(ITERATIONS_MAX, self._iterations):
                return None
            keys = [_derived(secret, salt, int(iterations)) for secret in self._secrets]
        except (ValueError, OverflowError):
            return None
        for key in keys:
            try:
                return AESGCM(key).decrypt(nonce, encrypted, _place(broker, name)).decode()
            except (InvalidTag, ValueError):
                continue
        return None


def _place(broker: str, name: str) -> bytes:
    return f"{broker}/{name}".encode()


@lru_cache(maxsize=64)
def _derived(secret: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", secret, salt, iterations, dklen=32)


def _check_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ConfigError([MissingExtra("password.encoder.secret", "[hidden]", "security", str(error))]) from error
