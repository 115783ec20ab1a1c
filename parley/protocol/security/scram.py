"""The computations of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), shared by client and server.

A server stores a ``ScramCredential``: its holder can verify a password and pose as the server, but cannot log in as the
user. Passwords and user names are used without SASLprep, as in Kafka.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from parley.light_dataclasses import dataclass

HASHES: Mapping[str, str] = MappingProxyType({"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"})
"""The hash function of each mechanism."""
ITERATIONS_MIN = 4096
"""Kafka's minimum and default number of iterations, for both mechanisms."""
ITERATIONS_MAX = 16_384
"""Kafka's maximum number of iterations. The client must compute them at each login."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The data that a server stores for a user's password, for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def salted_password(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return the salted password, ``Hi(password, salt, iterations)`` in RFC 5802. Blocks for some milliseconds."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations)


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the server's credential for a salted password."""
    client_key = _hmac(mechanism, salted, b"Client Key")
    return ScramCredential(salt, iterations, _hash(mechanism, client_key), _hmac(mechanism, salted, b"Server Key"))


def client_proof(mechanism: str, salted: bytes, auth_message: bytes) -> bytes:
    """Return the proof with which a client shows that it knows the password."""
    client_key = _hmac(mechanism, salted, b"Client Key")
    return _xor(client_key, _hmac(mechanism, _hash(mechanism, client_key), auth_message))


def is_proof_of(mechanism: str, credential: ScramCredential, auth_message: bytes, proof: bytes) -> bool:
    """Return True if ``proof`` shows that the client knows the password. Takes the same time for every wrong proof of
    the same length."""
    signature = _hmac(mechanism, credential.stored_key, auth_message)
    if len(proof) != len(signature):
        return False
    return hmac.compare_digest(_hash(mechanism, _xor(proof, signature)), credential.stored_key)


def server_signature(mechanism: str, server_key: bytes, auth_message: bytes) -> bytes:
    """Return the signature with which a server shows that it has the credential."""
    return _hmac(mechanism, server_key, auth_message)


def server_key_of(mechanism: str, salted: bytes) -> bytes:
    """Return the key with which the server signs. A client verifies the signature with it."""
    return _hmac(mechanism, salted, b"Server Key")


def encode_name(name: str) -> str:
    """Return a user name as it appears in a SCRAM message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def decode_name(text: str) -> str:
    """Return the user name in a SCRAM message. Raises ValueError if an ``=`` is not part of ``=2C`` or ``=3D``."""
    name = text.replace("=2C", ",").replace("=3D", "=")
    if encode_name(name) != text:
        raise ValueError("a user name contains an escape that SCRAM does not define")
    return name


def _hmac(mechanism: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, HASHES[mechanism])


def _hash(mechanism: str, data: bytes) -> bytes:
    return hashlib.new(HASHES[mechanism], data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
