"""Signs requests between workers, with a key that only readers of the configuration log know (KIP-507)."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from parley.pipeline.connect.distributed.configs import SessionKey
from parley.pipeline.connect.herder_results import BadRequest, Forbidden

SIGNATURE: Final = "X-Connect-Authorization"
ALGORITHM: Final = "X-Connect-Request-Signature-Algorithm"
KEY_TTL_MS: Final = 3_600_000
"""The age at which the leader replaces the key (``inter.worker.key.ttl.ms``)."""
KEY_BITS_MIN: Final = 128
_HASHES: Final = {"HmacSHA256": "sha256", "HmacSHA384": "sha384", "HmacSHA512": "sha512"}
ALGORITHMS: Final = tuple(_HASHES)
_ALGORITHM: Final = "HmacSHA256"
_KEY_BITS: Final = {"HmacSHA256": 256, "HmacSHA384": 384, "HmacSHA512": 512}


@dataclass(frozen=True, slots=True)
class SigningRules:
    """The rules by which a worker creates keys, signs requests and accepts signatures (``inter.worker.*``)."""

    key_algorithm: str = _ALGORITHM
    key_bits: int | None = None
    """The length of a key in bits; None means the length of the algorithm's digest."""
    algorithm: str = _ALGORITHM
    accepted: tuple[str, ...] = (_ALGORITHM,)
    key_ttl_ms: int = KEY_TTL_MS


DEFAULT_RULES: Final = SigningRules()


def new_key(now_ms: int, rules: SigningRules = DEFAULT_RULES) -> SessionKey:
    """Return a new random key, created at ``now_ms`` (ms since 1970), of the length and for the algorithm
    in the rules.
    """
    bits = rules.key_bits or _KEY_BITS[rules.key_algorithm]
    return SessionKey(secrets.token_bytes((bits + 7) // 8), rules.key_algorithm, now_ms)


def sign(key: SessionKey, body: bytes, rules: SigningRules = DEFAULT_RULES) -> dict[str, str]:
    """Return the headers with the signature of the body."""
    digest = base64.b64encode(_digest(key, body, rules.algorithm)).decode()
    return {SIGNATURE: digest, ALGORITHM: rules.algorithm}


def check(key: SessionKey | None, body: bytes, headers: Mapping[str, str], rules: SigningRules = DEFAULT_RULES) -> None:
    """Raise BadRequest if the headers contain no readable signature, or Forbidden if it is not the signature of the
    body.
    """
    signature, algorithm = headers.get(SIGNATURE), headers.get(ALGORITHM)
    if signature is None or algorithm is None:
        raise BadRequest("Internal request missing required signature")
    if algorithm not in rules.accepted:
        raise BadRequest(
            f"This worker does not support the '{algorithm}' key signing algorithm used by other workers. "
            f"This worker is currently configured to use: [{', '.join(rules.accepted)}]. "
            "Check that all workers' configuration files permit the same set of signature algorithms "
            "(inter.worker.verification.algorithms), and correct any misconfigured worker and restart it."
        )
    try:
        given = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("the signature is not base64") from None
    if key is None or not hmac.compare_digest(given, _digest(key, body, algorithm)):
        raise Forbidden("Internal request contained invalid signature.")


def is_signed(headers: Mapping[str, str]) -> bool:
    """Return True if the headers contain a signature, which may be wrong."""
    return SIGNATURE in headers and ALGORITHM in headers


def _digest(key: SessionKey, body: bytes, algorithm: str) -> bytes:
    return hmac.digest(key.key, body, _HASHES[algorithm])
