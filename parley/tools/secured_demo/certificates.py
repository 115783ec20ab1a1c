"""A certificate authority for clusters on this machine, in a folder that only its user can read.

It is only for demonstrations: its key has no password, and is stored beside the certificates.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS: Final = 3650
_CERTIFICATE_DAYS: Final = 365
_CLOCK_SKEW: Final = timedelta(hours=1)


class Authority:
    """The certificate authority in a folder, which is created if there is none. Clients trust its certificate,
    ``authority.pem``."""

    def __init__(self, folder: Path, name: str = "Parley demo authority") -> None:
        self.certificate_file = folder / "authority.pem"
        self._key_file = folder / "authority.key"
        if not self.certificate_file.exists():
            self._create(name)
        key = load_pem_private_key(self._key_file.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self._certificate = x509.load_pem_x509_certificate(self.certificate_file.read_bytes())

    def issue(self, path: Path, name: str) -> Path:
        """Write a new key and its certificate for ``name`` to a PEM file, and return its path.

        The certificate is valid for this machine's local addresses (``HOSTS``), for servers and clients.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(host) if host[0].isalpha() else x509.IPAddress(ip_address(host)) for host in HOSTS]
        certificate = (
            _builder(name, self._certificate.subject, key.public_key(), _CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        write_private(path, _pem(key) + certificate.public_bytes(Encoding.PEM))
        return path

    def _create(self, name: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(name, _distinguished(name), key.public_key(), _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        write_private(self._key_file, _pem(key))
        write_private(self.certificate_file, certificate.public_bytes(Encoding.PEM))


def write_private(path: Path, content: bytes | str) -> None:
    """Write a file that only its owner can read, atomically replacing any older file of that name."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    draft.replace(path)


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_distinguished(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _distinguished(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
