"""Contexts from the ``ssl.*`` keys work with each other as those of Kafka's clients and brokers do."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from parley.configuration.key_stores import BadKeyStore
from parley.configuration.tls import TlsSettings, tls_settings
from tests.support.certificates import Authority, Issued

ROOT = Authority("root")
BETWEEN = Authority("between", ROOT)
BROKER = BETWEEN.issue("broker", "localhost", "127.0.0.1")
ALICE = ROOT.issue("alice")
STRANGER = Authority("another").issue("mallory", "localhost")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> ssl.SSLObject:
    """Connect both in memory; the server's side. Raises SSLError if either refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (server.wrap_bio(to_server, to_client, True), client.wrap_bio(to_client, to_server, server_hostname=host))
    waiting = set(sides)
    for _ in range(10):
        for side in sides:
            try:
                side.do_handshake()
                waiting.discard(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    sides[1].write(b"x")
    assert sides[0].read(1) == b"x"  # with TLS 1.3 a server verifies the client's certificate only now
    return sides[0]


def of(**keys: str) -> TlsSettings:
    return tls_settings({f"ssl.{key.replace('_', '.')}": value for key, value in keys.items()})


def broker(**keys: str) -> TlsSettings:
    return of(keystore_key=BROKER.key(), keystore_certificate_chain=BROKER.chain, **keys)


def client(**keys: str) -> TlsSettings:
    return of(truststore_certificates=ROOT.pem, **keys)


def test_a_client_verifies_chain_and_name() -> None:
    made = client().client_context()
    assert handshake(broker().server_context(), made).version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(broker().server_context(), made, "elsewhere")
    stranger = of(keystore_key=STRANGER.key(), keystore_certificate_chain=STRANGER.chain)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(stranger.server_context(), made)


def test_the_name_is_not_verified_without_an_algorithm() -> None:
    lenient = client(endpoint_identification_algorithm="").client_context()
    handshake(broker().server_context(), lenient, "elsewhere")


def test_an_intermediate_in_the_trust_store_is_trusted_by_itself() -> None:
    """As in Java; OpenSSL alone would want the root."""
    handshake(broker().server_context(), of(truststore_certificates=BETWEEN.pem).client_context())


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_certificate(version: str) -> None:
    keys = {"keystore_key": ALICE.key("p"), "keystore_certificate_chain": ALICE.chain, "key_password": "p"}
    server = broker(truststore_certificates=ROOT.pem)
    alice = client(enabled_protocols=version, **keys).client_context()
    without_certificate = client(enabled_protocols=version).client_context()
    shown = handshake(server.server_context("required"), alice).getpeercert()
    assert shown is not None
    assert shown["subject"] == ((("commonName", "alice"),),)
    assert handshake(server.server_context("requested"), without_certificate).getpeercert() is None
    with pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
        handshake(server.server_context("required"), without_certificate)


def test_stores_in_files(tmp_path: Path) -> None:
    store, trust = BROKER.write_pkcs12(tmp_path / "broker.p12", "secret"), ROOT.write(tmp_path / "root.pem")
    server = of(keystore_location=str(store), keystore_password="secret")
    assert server.files == (str(store),)
    handshake(server.server_context(), of(truststore_location=str(trust)).client_context())


@pytest.mark.parametrize(
    ("suites", "chosen", "version"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305", "TLSv1.2"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384", "TLSv1.2"),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2"),
        ("TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLSv1.3"),
        ("TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLSv1.3"),
        ("TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256", "TLSv1.3"),
    ],
)
def test_cipher_suites_have_javas_names(suites: str, chosen: str, version: str) -> None:
    connected = handshake(broker(cipher_suites=suites).server_context(), client().client_context())
    assert connected.version() == version
    assert (connected.cipher() or ("",))[0] == chosen


def test_other_suites_of_tls_1_3_are_not_allowed() -> None:
    server = broker(cipher_suites="TLS_AES_256_GCM_SHA384")
    limited = client(cipher_suites="TLS_AES_128_GCM_SHA256,TLS_CHACHA20_POLY1305_SHA256")
    with pytest.raises(ssl.SSLError, match="NO_SHARED_CIPHER"):
        handshake(server.server_context(), limited.client_context())


def test_contradictions_are_refused(tmp_path: Path) -> None:
    other = ROOT.issue("other")
    marked = "marked-secret"
    cases = {
        "not supported": {"enabled_protocols": "TLSv1.1"},
        "expected PEM or PKCS12": {"keystore_type": "BCFKS"},
        "expected https": {"endpoint_identification_algorithm": "ldaps"},
        "no suite TLS_NULL": {"cipher_suites": "TLS_NULL_WITH_NULL_NULL"},
        "no suite TLS_AES_265_GCM_SHA384": {"cipher_suites": "TLS_AES_265_GCM_SHA384"},
        "no suite for the versions": {"cipher_suites": "TLS_AES_128_GCM_SHA256", "enabled_protocols": "TLSv1.2"},
        "need each other": {"keystore_key": other.key()},
        "keystore.key are both set": {"keystore_key": other.key(), "keystore_location": str(tmp_path)},
        "certificates are both set": {"truststore_certificates": "x", "truststore_location": str(tmp_path)},
        "no certificate": {"truststore_certificates": "x"},
        "KEY_VALUES_MISMATCH": {"keystore_key": other.key(), "keystore_certificate_chain": ALICE.chain},
        "password may be wrong": {
            "keystore_key": ALICE.key("p"), "keystore_certificate_chain": ALICE.chain, "key_password": marked
        },
    }  # fmt: skip
    for reason, keys in cases.items():
        with pytest.raises(BadKeyStore, match=reason) as raised:
            of(**keys).client_context()
        assert marked not in str(raised.value)
    with pytest.raises(BadKeyStore, match=r"needs ssl\.keystore\.location"):
        client().server_context()


# --- Revocation lists ---


@pytest.fixture
def crl(tmp_path: Path) -> Path:
    return tmp_path / "revoked.pem"


def refusing(path: Path, *, trusted: str = ROOT.pem) -> ssl.SSLContext:
    """Return the context of a listener that demands certificates, and reads the lists in a file."""
    return broker(truststore_certificates=trusted, crl_location=str(path)).server_context("required")


def named(one: Issued) -> ssl.SSLContext:
    return client(keystore_key=one.key(), keystore_certificate_chain=one.chain).client_context()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_revoked_certificate_is_refused(crl: Path, version: str) -> None:
    bob = ROOT.issue("bob")
    crl.write_text("a comment\n" + ROOT.revocation_list(bob).replace("\n", "\r\n"))
    maximum = ssl.TLSVersion.TLSv1_2 if version == "TLSv1.2" else ssl.TLSVersion.TLSv1_3
    server = refusing(crl)
    server.maximum_version = maximum
    handshake(server, named(ALICE))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        handshake(server, named(bob))
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
        handshake(server, named(STRANGER))


def test_every_certificate_of_a_chain_is_looked_up(crl: Path) -> None:
    deputy = BETWEEN.issue("deputy")
    crl.write_text(ROOT.revocation_list() + BETWEEN.revocation_list())
    handshake(refusing(crl), named(deputy))
    crl.write_text(ROOT.revocation_list(BETWEEN) + BETWEEN.revocation_list())
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        handshake(refusing(crl), named(deputy))


def test_without_a_valid_list_nobody_is_let_in(crl: Path) -> None:
    """A list that is missing, has expired or is signed by another authority says nothing of a certificate."""
    crl.write_text(ROOT.revocation_list())
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get certificate CRL"):
        handshake(refusing(crl), named(BETWEEN.issue("deputy")))
    crl.write_text(ROOT.revocation_list(expires=datetime.now(UTC) - timedelta(hours=1)))
    with pytest.raises(ssl.SSLCertVerificationError, match="CRL has expired"):
        handshake(refusing(crl), named(ALICE))
    crl.write_text(Authority("root").revocation_list())
    with pytest.raises(ssl.SSLCertVerificationError, match="CRL"):
        handshake(refusing(crl), named(ALICE))


def test_a_client_refuses_a_broker_whose_certificate_is_revoked(crl: Path) -> None:
    crl.write_text(ROOT.revocation_list() + BETWEEN.revocation_list(BROKER))
    wary = client(crl_location=str(crl)).client_context()
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        handshake(broker().server_context(), wary)
    crl.write_text(ROOT.revocation_list() + BETWEEN.revocation_list())
    handshake(broker().server_context(), client(crl_location=str(crl)).client_context())


def test_a_file_without_a_list_is_refused(crl: Path) -> None:
    with pytest.raises(BadKeyStore, match="cannot be read"):
        client(crl_location=str(crl))
    crl.write_text(ROOT.pem)
    with pytest.raises(BadKeyStore, match=r"no revocation list in PEM.*openssl crl"):
        client(crl_location=str(crl))
    crl.write_text("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
    with pytest.raises(BadKeyStore, match="cannot be used"):
        client(crl_location=str(crl)).client_context()
