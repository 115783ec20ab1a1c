"""SCRAM's computations, compared with the example of RFC 7677."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from parley.protocol.security import scram

MECHANISM = "SCRAM-SHA-256"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
AUTH_MESSAGE = (
    b"n=user,r=rOprNGfwEbeRWgbNEkqO,"
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
)
PROOF = b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
SIGNATURE = b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_example_of_the_rfc() -> None:
    salted = scram.salted_password(MECHANISM, b"pencil", SALT, 4096)
    credential = scram.credential_of(MECHANISM, salted, SALT, 4096)
    assert scram.client_proof(MECHANISM, salted, AUTH_MESSAGE) == PROOF
    assert scram.is_proof_of(MECHANISM, credential, AUTH_MESSAGE, PROOF)
    assert b64encode(scram.server_signature(MECHANISM, credential.server_key, AUTH_MESSAGE)) == SIGNATURE
    assert scram.server_key_of(MECHANISM, salted) == credential.server_key


@pytest.mark.parametrize("mechanism", list(scram.HASHES))
def test_a_proof_of_another_password_or_length_is_refused(mechanism: str) -> None:
    credential = scram.credential_of(mechanism, scram.salted_password(mechanism, b"right", SALT, 4096), SALT, 4096)
    wrong = scram.client_proof(mechanism, scram.salted_password(mechanism, b"wrong", SALT, 4096), AUTH_MESSAGE)
    assert not scram.is_proof_of(mechanism, credential, AUTH_MESSAGE, wrong)
    assert not scram.is_proof_of(mechanism, credential, AUTH_MESSAGE, wrong[:-1])
    assert not scram.is_proof_of(mechanism, credential, AUTH_MESSAGE, b"")


@pytest.mark.parametrize("name", ["alice", "a,b", "a=b", "=2C", "=3D,=3D", "", "CN=x,OU=y"])
def test_names_survive_their_encoding(name: str) -> None:
    encoded = scram.encode_name(name)
    assert "," not in encoded
    assert scram.decode_name(encoded) == name


@pytest.mark.parametrize("text", ["=", "a=b", "=2c", "=2"])
def test_unknown_escapes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="escape"):
        scram.decode_name(text)


def test_a_credential_prints_no_key() -> None:
    credential = scram.ScramCredential(b"salt", 4096, b"stored", b"server")
    assert "stored" not in repr(credential).replace("stored_key", "")
    assert "server" not in repr(credential)
