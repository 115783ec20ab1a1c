"""A certificate authority for tests: certificates and keys as PEM and PKCS #12, created in milliseconds."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""What the key of an authority is for."""


def _distinguished(name: str) -> x509.Name:
    """Return the distinguished name for a text such as ``CN=alice,OU=ops`` or just ``alice``."""
    kinds = {"CN": NameOID.COMMON_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME, "O": NameOID.ORGANIZATION_NAME}
    parts = [part.partition("=") for part in (name if "=" in name else f"CN={name}").split(",")]
    return x509.Name([x509.NameAttribute(kinds[kind], value) for kind, _, value in reversed(parts)])


@dataclass(frozen=True)
class Issued:
    """A certificate with its key, and the certificates of the authorities between it and the root."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey
    intermediates: tuple[x509.Certificate, ...] = ()

    @property
    def chain(self) -> str:
        return "".join(one.public_bytes(Encoding.PEM).decode() for one in (self.certificate, *self.intermediates))

    def key(self, password: str = "") -> str:
        """Return the key in PKCS #8 as PEM, encrypted if there is a password."""
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def write_pem(self, path: Path, password: str = "") -> Path:
        """Write key and chain to one file, for ``ssl.keystore.location`` with the type PEM."""
        path.write_text(self.key(password) + self.chain)
        return path

    def write_pkcs12(self, path: Path, password: str) -> Path:
        encryption = BestAvailableEncryption(password.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"own", self.private_key, self.certificate, self.intermediates, encryption
            )
        )
        return path


class Authority:
    """Signs certificates that are valid from yesterday until tomorrow by default."""

    def __init__(self, name: str = "test authority", issuer: Authority | None = None) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._issuer = issuer
        self.certificate = (issuer or self)._sign(_distinguished(name), self._key.public_key(), None, is_authority=True)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def write(self, path: Path) -> Path:
        """Write the file for ``ssl.truststore.location``."""
        path.write_text(self.pem)
        return path

    def issue(
        self,
        name: str,
        *hosts: str,
        expires: datetime | None = None,
        purposes: tuple[x509.ObjectIdentifier, ...] = (),
    ) -> Issued:
        """Issue a certificate for a distinguished name and these host names or addresses. Without ``purposes`` it
        serves every purpose."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_distinguished(name), key.public_key(), expires, hosts=hosts, purposes=purposes)
        return Issued(certificate, key, () if self._issuer is None else (self.certificate,))

    def revocation_list(self, *revoked: Issued | Authority, expires: datetime | None = None) -> str:
        """Return a revocation list of these certificates as PEM, valid from yesterday until tomorrow by default."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(min(now, expires or now) - _DAY)
            .next_update(expires or now + _DAY)
        )
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now - _DAY).build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        expires: datetime | None,
        *,
        hosts: tuple[str, ...] = (),
        purposes: tuple[x509.ObjectIdentifier, ...] = (),
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.certificate.subject if hasattr(self, "certificate") else subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, expires or now) - _DAY)
            .not_valid_after(expires or now + _DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        # Python 3.13 demands these identifiers, and that an authority says what its key is for.
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        if is_authority:
            builder = builder.add_extension(_SIGNS, critical=True)
        if purposes:
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
        return builder.sign(self._key, hashes.SHA256())


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
