"""Verifies the passwords of known users, in the same time whether or not the user exists; parses HTTP's basic
authentication."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

__all__ = ["Passwords", "basic_credentials"]

_UNKNOWN: Final = bytes(hashlib.sha256().digest_size)


class Passwords:
    """The passwords of users. Compares digests, so that the time of a comparison reveals nothing about a password."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._digests = {name: _digest(password) for name, password in users.items()}

    def __len__(self) -> int:
        return len(self._digests)

    def verify(self, name: str, password: str) -> bool:
        """Return True if ``password`` is the password of the user ``name``; False if it is not, or if the user is
        unknown."""
        expected = self._digests.get(name)
        is_same = hmac.compare_digest(expected or _UNKNOWN, _digest(password))
        return is_same and expected is not None


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()


def basic_credentials(authorization: str) -> tuple[str, str]:
    """Return the user name and the password in an ``Authorization: Basic ...`` header; both are empty if it is
    malformed or has another scheme."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return name, password
