"""Requests between workers are signed as in Kafka."""

from __future__ import annotations

import base64

import pytest

from parley.pipeline.connect.distributed.configs import SessionKey
from parley.pipeline.connect.distributed.signing import SigningRules, check, new_key, sign
from parley.pipeline.connect.herder_results import BadRequest, Forbidden

KEY = SessionKey(b"key", "HmacSHA256", 0)
BODY = b"The quick brown fox jumps over the lazy dog"


def test_a_signature_is_an_hmac() -> None:
    headers = sign(KEY, BODY)
    digest = bytes.fromhex("f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8")  # of many test suites
    assert headers == {
        "X-Connect-Authorization": base64.b64encode(digest).decode(),
        "X-Connect-Request-Signature-Algorithm": "HmacSHA256",
    }
    check(KEY, BODY, headers)


def test_a_request_without_a_valid_signature_is_refused() -> None:
    headers = sign(KEY, BODY)
    with pytest.raises(BadRequest, match="missing required signature"):
        check(KEY, BODY, {})
    with pytest.raises(BadRequest, match="signature algorithms"):
        check(KEY, BODY, {**headers, "X-Connect-Request-Signature-Algorithm": "rot13"})
    with pytest.raises(BadRequest, match="base64"):
        check(KEY, BODY, {**headers, "X-Connect-Authorization": "?"})
    for key, body in ((KEY, b"other"), (new_key(0), BODY), (None, BODY)):
        with pytest.raises(Forbidden, match="invalid signature"):
            check(key, body, headers)


def test_workers_that_move_to_another_algorithm() -> None:
    """The key may have been generated for the other algorithm: both are accepted while a group changes
    the algorithm."""
    newer = SigningRules("HmacSHA512", None, "HmacSHA512", ("HmacSHA512", "HmacSHA256"))
    older = SigningRules(accepted=("HmacSHA256", "HmacSHA512"))
    key = new_key(0, newer)
    assert (len(key.key), key.algorithm) == (64, "HmacSHA512")
    check(key, BODY, sign(key, BODY, newer), older)
    check(key, BODY, sign(key, BODY, older), newer)
    with pytest.raises(BadRequest, match="does not support the 'HmacSHA512'"):
        check(key, BODY, sign(key, BODY, newer))
    assert len(new_key(0, SigningRules(key_bits=129)).key) == 17
