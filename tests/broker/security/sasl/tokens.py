"""A token issuer for tests: keys, a set of their public parts, and tokens signed with them."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

_KEYS: dict[str, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey] = {
    "rsa": rsa.generate_private_key(65537, 2048),
    "ec": ec.generate_private_key(ec.SECP256R1()),
    "stranger": rsa.generate_private_key(65537, 2048),
}
ISSUER = "https://issuer.example"


def jwk(kid: str, **more: str) -> dict[str, Any]:
    """Return the public part of a key, as a key set contains it."""
    algorithm: Any = jwt.algorithms.ECAlgorithm if kid == "ec" else jwt.algorithms.RSAAlgorithm
    return {**algorithm.to_jwk(_KEYS[kid].public_key(), as_dict=True), "kid": kid, "use": "sig", **more}


def jwks(*kids: str) -> bytes:
    return json.dumps({"keys": [jwk(kid) for kid in kids]}).encode()


def claims(**changed: Any) -> dict[str, Any]:
    """Return the claims of a valid token. A value of None removes a claim."""
    now = int(time.time())
    found = {"sub": "alice", "iss": ISSUER, "aud": "kafka", "iat": now, "exp": now + 300, **changed}
    return {name: value for name, value in found.items() if value is not None}


def signed(kid: str = "rsa", algorithm: str = "", *, named: str | None = "", header_of: int = 0, **changed: Any) -> str:
    """Return a token signed with a key. ``named`` is its key id. Its header has at least ``header_of`` bytes."""
    key: Any = _KEYS[kid]
    header: dict[str, Any] = {} if named is None else {"kid": named or kid}
    if header_of:
        header["x5c"] = "x" * header_of
    return jwt.encode(claims(**changed), key, algorithm or ("ES256" if kid == "ec" else "RS256"), dict(header))


def message(token: str, *, authorization_id: str = "", extensions: str = "") -> bytes:
    """Return the first message of an OAUTHBEARER client."""
    header = f"a={authorization_id}" if authorization_id else ""
    return f"n,{header},\x01auth=Bearer {token}\x01{extensions}\x01".encode()
