"""Requests among workers, signed with a key that only readers of the configuration log know (KIP-507)."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Mapping
from typing import Final

from parley.pipeline.connect.distributed.configs import SessionKey
from parley.pipeline.connect.herder import BadRequest, Forbidden

__all__ = ["KEY_TTL_MS", "check", "new_key", "sign"]

SIGNATURE: Final = "X-Connect-Authorization"
ALGORITHM: Final = "X-Connect-Request-Signature-Algorithm"
KEY_TTL_MS: Final = 3_600_000
"""After so long the leader makes another key (``inter.worker.key.ttl.ms``)."""
_HASHES: Final = {"HmacSHA256": "sha256", "HmacSHA384": "sha384", "HmacSHA512": "sha512"}
_ALGORITHM: Final = "HmacSHA256"
_KEY_BYTES: Final = 32


def new_key(now_ms: int) -> SessionKey:
    """A key nobody knows yet."""
    return SessionKey(secrets.token_bytes(_KEY_BYTES), _ALGORITHM, now_ms)


def sign(key: SessionKey, body: bytes) -> dict[str, str]:
    """The headers that show who has sent the body."""
    return {SIGNATURE: base64.b64encode(_digest(key, body)).decode(), ALGORITHM: key.algorithm}


def check(key: SessionKey | None, body: bytes, headers: Mapping[str, str]) -> None:
    """Raises BadRequest without a signature that can be looked at, Forbidden where it is not that of the body."""
    signature, algorithm = headers.get(SIGNATURE), headers.get(ALGORITHM)
    if signature is None or algorithm is None:
        raise BadRequest("Internal request missing required signature")
    if algorithm not in _HASHES:
        raise BadRequest(f"This worker does not support the '{algorithm}' signature algorithm used to sign the request")
    try:
        given = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("the signature is not base64") from None
    if key is None or algorithm != key.algorithm or not hmac.compare_digest(given, _digest(key, body)):
        raise Forbidden("Internal request contained invalid signature.")


def _digest(key: SessionKey, body: bytes) -> bytes:
    return hmac.digest(key.key, body, _HASHES[key.algorithm])
