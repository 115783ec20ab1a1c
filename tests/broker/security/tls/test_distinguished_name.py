"""Distinguished names as Java prints them; the expected texts come from ``X500Principal.getName()``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from parley.broker.security.tls.distinguished_name import subject_of

_KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(*rdns: list[tuple[x509.ObjectIdentifier, str]]) -> bytes:
    """Return a certificate in DER whose subject has these parts, in the order of the certificate."""
    name = x509.Name(
        x509.RelativeDistinguishedName([x509.NameAttribute(oid, value) for oid, value in rdn]) for rdn in rdns
    )
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(_KEY.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(_KEY, hashes.SHA256()).public_bytes(Encoding.DER)


CN, OU, ORG = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.ORGANIZATION_NAME
C = NameOID.COUNTRY_NAME


@pytest.mark.parametrize(
    ("rdns", "text"),
    [
        ([[(C, "US")], [(ORG, "Sun")], [(OU, "Java")], [(CN, "Duke")]], "CN=Duke,OU=Java,O=Sun,C=US"),
        ([[(CN, 'a,b+c"d\\e<f>g;h=i#j')]], r"CN=a\,b\+c\"d\\e\<f\>g\;h\=i\#j"),
        ([[(CN, " lead and trail  ")]], r"CN=\ lead and trail\ \ "),
        ([[(CN, "é漢")]], "CN=é漢"),
        ([[(NameOID.EMAIL_ADDRESS, "a@b.c")], [(CN, "x")]], "CN=x,1.2.840.113549.1.9.1=#16056140622e63"),
        ([[(NameOID.SERIAL_NUMBER, "12")]], "2.5.4.5=#13023132"),
        ([[(NameOID.DOMAIN_COMPONENT, "com")], [(NameOID.USER_ID, "u")]], "UID=u,DC=com"),
        ([[(NameOID.TITLE, "t" * 200)]], "2.5.4.12=#0c81c8" + "74" * 200),
        ([[(OU, "x"), (CN, "y")]], "CN=y+OU=x"),
        ([], ""),
    ],
)
def test_a_subject(rdns: list[list[tuple[x509.ObjectIdentifier, str]]], text: str) -> None:
    assert subject_of(certificate(*rdns)) == text
