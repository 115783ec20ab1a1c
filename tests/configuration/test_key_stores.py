"""Key stores are read as Kafka's configuration names them, and no error repeats a secret."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from parley.configuration.key_stores import (
    BadKeyStore,
    identity_of_text,
    pem_certificates,
    pem_file,
    read_identity,
    read_trusted,
)
from tests.support.certificates import Authority, Issued

ROOT = Authority("root")
BETWEEN = Authority("between", ROOT)
ALICE = BETWEEN.issue("CN=alice,OU=ops", "localhost")


@pytest.mark.parametrize("password", ["", "key pass"])
def test_a_pem_file_holds_the_key_and_its_chain(tmp_path: Path, password: str) -> None:
    read = read_identity(str(ALICE.write_pem(tmp_path / "alice.jks", password)), "", password)
    assert read.chain == ALICE.chain
    assert read.password == password
    assert pem_certificates(read.pem) == ALICE.chain


def test_a_pkcs12_file_holds_the_key_and_its_chain_in_order(tmp_path: Path) -> None:
    """Strict peers want each certificate before its issuer, whatever order the file has."""
    shuffled = Issued(ALICE.certificate, ALICE.private_key, (ROOT.certificate, BETWEEN.certificate))
    read = read_identity(str(shuffled.write_pkcs12(tmp_path / "alice.p12", "store pass")), "store pass")
    assert read.chain == ALICE.chain + ROOT.pem
    assert read.key == ALICE.key()


def test_a_pkcs12_file_with_an_unknown_curve_is_a_bad_key_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ALICE.write_pkcs12(tmp_path / "alice.p12", "marked")
    monkeypatch.setattr(pkcs12, "load_pkcs12", Mock(side_effect=UnsupportedAlgorithm("Curve 1.3.132.0.9")))
    with pytest.raises(BadKeyStore, match=r"alice.p12 has an unsupported algorithm: Curve 1.3.132.0.9"):
        read_identity(str(path), "marked")


def test_the_key_password_opens_a_pkcs12_file_without_a_store_password(tmp_path: Path) -> None:
    read = read_identity(str(ALICE.write_pkcs12(tmp_path / "alice.p12", "secret")), "", "secret")
    assert read.key == ALICE.key()


def test_a_trust_store_of_java_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trust.jks"
    entries = [pkcs12.PKCS12Certificate(ROOT.certificate, b"root")]
    path.write_bytes(pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(b"secret")))
    assert read_trusted(str(path), "secret") == ROOT.pem


def test_a_trust_store_in_pem_may_have_text_between_its_certificates(tmp_path: Path) -> None:
    path = tmp_path / "trust.pem"
    path.write_text(f"# Zürich\n{ROOT.pem}\nfriendlyName: é\n{BETWEEN.pem}", encoding="utf-8")
    assert read_trusted(str(path)) == ROOT.pem + BETWEEN.pem


@pytest.mark.parametrize("separator", [" ", "", "\r\n", "\n   "])
def test_text_may_have_lost_its_line_breaks(separator: str) -> None:
    """As in a properties file, where a value continues on the next line without a line break."""
    encrypted = ALICE.key("p")
    chain, key = (text.replace("\n", separator) for text in (ALICE.chain, encrypted))
    read = identity_of_text(chain, key, "p", source="ssl.keystore.key")
    assert read.chain == ALICE.chain
    assert read.key == encrypted


def test_a_key_with_headers_is_kept_as_it_is() -> None:
    key = ALICE.private_key.private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"p")
    ).decode()
    read = identity_of_text(ALICE.chain, key, "p", source="a file")
    assert load_pem_private_key(read.key.encode(), b"p") is not None


def test_a_java_keystore_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    path = tmp_path / "old.jks"
    path.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    for read in (read_identity, read_trusted):
        with pytest.raises(BadKeyStore, match=r"keytool -importkeystore .*old.p12 -deststoretype pkcs12"):
            read(str(path), "secret")


def test_each_unusable_store_is_named(tmp_path: Path) -> None:
    sealed = ALICE.write_pkcs12(tmp_path / "alice.p12", "marked-secret")
    encrypted = ALICE.write_pem(tmp_path / "alice.pem", "marked-secret")
    authority, empty = ROOT.write(tmp_path / "root.pem"), tmp_path / "empty"
    empty.write_text("nothing")
    cases = (
        (lambda: read_identity(str(sealed), "marked-guess"), "password is wrong"),
        (lambda: read_identity(str(encrypted)), "no password for it"),
        (lambda: read_identity(str(authority)), "no private key"),
        (lambda: read_trusted(str(empty)), "no certificate"),
        (lambda: read_trusted(str(tmp_path / "absent")), "No such file"),
        (lambda: read_trusted(str(tmp_path)), "directory"),
    )
    for read, reason in cases:
        with pytest.raises(BadKeyStore, match=reason) as raised:
            read()
        assert str(tmp_path) in str(raised.value)
        assert "marked" not in str(raised.value)


def test_an_identity_shows_no_secret() -> None:
    identity = identity_of_text(ALICE.chain, ALICE.key("marked"), "marked", source="a file")
    assert "PRIVATE" not in repr(identity)
    assert "marked" not in repr(identity)


def test_a_pem_file_exists_only_inside_its_block() -> None:
    with pem_file("content") as path:
        assert Path(path).read_text() == "content"
        assert Path(path).read_text() == "content"
    assert not os.path.exists(path)
