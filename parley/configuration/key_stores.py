"""Reads the key stores and trust stores of Kafka's configuration: PEM and PKCS #12. No other module reads them.

The format of a file is detected from its first bytes, regardless of its name and declared type. Python's ``ssl`` and
kazoo read only PEM, and only from files. This module therefore converts every store to PEM, and ``pem_file`` provides
the text as a file that, on Linux, is not on disk. Certificates and keys can also be given as text (KIP-651), with
spaces or nothing instead of line breaks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from parley.configuration.extras import how_to_install
from parley.light_dataclasses import dataclass

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = [
    "BadKeyStore",
    "Identity",
    "identity_of_text",
    "is_pem",
    "pem_certificates",
    "pem_file",
    "read_identity",
    "read_revocation_lists",
    "read_trusted",
]

_PKCS12: Final = b"\x30"
_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_REVOCATION_LIST: Final = "X509 CRL"
_CERTIFICATES: Final = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")


class BadKeyStore(ValueError):
    """Raised if a key store or a TLS setting cannot be used. The message names the file or key, and contains no
    secret."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key and its certificate chain, as PEM. ``password`` is empty if the key is not encrypted."""

    chain: str
    key: str = field(repr=False)
    password: str = field(default="", repr=False)

    @property
    def pem(self) -> str:
        """The certificate chain and the key in one text."""
        return self.chain + self.key


def read_identity(path: str, store_password: str = "", key_password: str = "") -> Identity:
    """Read the private key and its certificate chain from a file. Blocks.

    Raises BadKeyStore if the file cannot be read, or lacks the key or the certificates, or if a password is missing. A
    wrong password raises it only for PKCS #12. For PEM, it is detected when the identity is loaded.
    """
    if is_pem(path):
        text = _text(path)
        return identity_of_text(text, text, key_password, source=path)
    key, certificates = _pkcs12(path, store_password or key_password)
    if not key or not certificates:
        raise BadKeyStore(f"{path} contains no key with a certificate")
    return Identity(certificates, key)


def read_trusted(path: str, password: str = "") -> str:
    """Read the certificates to trust, as PEM, from a file. Blocks.

    Raises BadKeyStore if the file cannot be read, if it contains no certificate, or if the password of a PKCS #12 file
    is wrong.
    """
    certificates = pem_certificates(_text(path)) if is_pem(path) else _pkcs12(path, password)[1]
    if not certificates:
        raise BadKeyStore(f"{path} contains no certificate")
    return certificates


def read_revocation_lists(path: str) -> str:
    """Read the certificate revocation lists in a file, as PEM. Blocks.

    Raises BadKeyStore if the file cannot be read, or if it contains no PEM list.
    """
    found = [body for kind, body in _BLOCK.findall(_text(path)) if kind == _REVOCATION_LIST]
    if not found:
        convert = f"openssl crl -inform der -in {path} -out {Path(path).stem}.pem"
        raise BadKeyStore(f"{path} contains no revocation list in PEM; if it is one in DER, convert it: {convert}")
    return "".join(_normal(_REVOCATION_LIST, body) for body in found)


def identity_of_text(chain: str, key: str, password: str, *, source: str) -> Identity:
    """Return the identity that the PEM texts contain. ``source`` names them in errors.

    Raises BadKeyStore if the key or the certificate is missing, or if the key is encrypted and ``password`` is empty. A
    wrong password is detected only when the identity is loaded.
    """
    keys = [(kind, body) for kind, body in _BLOCK.findall(key) if kind.endswith("PRIVATE KEY")]
    certificates = pem_certificates(chain)
    if not keys or not certificates:
        raise BadKeyStore(f"{source} contains no {'certificate' if keys else 'private key'} in PEM")
    kind, body = keys[0]
    if (kind.startswith("ENCRYPTED") or "Proc-Type:" in body) and not password:
        raise BadKeyStore(f"{source}: the private key is encrypted, but there is no password for it")
    return Identity(certificates, _normal(kind, body), password)


def pem_certificates(text: str) -> str:
    """Return the PEM certificates in a string, without the text between them; empty if there are none."""
    return "".join(_normal("CERTIFICATE", body) for kind, body in _BLOCK.findall(text) if kind in _CERTIFICATES)


def is_pem(path: str) -> bool:
    """Return False if a file begins like PKCS #12, else True: it must then be PEM. Blocks.

    Raises BadKeyStore if it is a JKS keystore, which only Java can read, or if the file cannot be read.
    """
    begin = _read(path)[:4]
    if begin in _JKS:
        raise BadKeyStore(
            f"{path} is a keystore in Java's old format (JKS); convert it to PKCS #12: "
            f"keytool -importkeystore -srckeystore {path} -destkeystore {Path(path).stem}.p12 -deststoretype pkcs12"
        )
    return not begin.startswith(_PKCS12)


@contextmanager
def pem_file(content: str) -> Iterator[str]:
    """Yield the path of a file with this content, for libraries that read secrets only from files.

    The file exists only inside the ``with`` block. On Linux it is in memory, and the path is valid only in this
    process. On other systems it is a temporary file that only this user can read.
    """
    if not hasattr(os, "memfd_create"):
        from tempfile import NamedTemporaryFile  # slow to import, and not needed on Linux

        with NamedTemporaryFile("w", prefix="parley-", encoding="ascii") as file:
            file.write(content)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("parley-pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content.encode("ascii"))
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _normal(kind: str, body: str) -> str:
    """Return a PEM block with the usual line breaks. A body with headers stays unchanged."""
    if ":" not in body:
        body = "\n" + "\n".join(wrap("".join(body.split()), 64)) + "\n"
    return f"-----BEGIN {kind}-----{body}-----END {kind}-----\n"


def _pkcs12(path: str, password: str) -> tuple[str, str]:
    """Return the private key and the certificates in a PKCS #12 file, as PEM. Each is empty if the file has none.

    Raises BadKeyStore if the file or its password cannot be used, or if the library ``cryptography`` is missing.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ImportError as error:
        raise BadKeyStore(f"{path} is PKCS #12: {how_to_install('security')}, or convert it to PEM") from error
    try:
        found = load_pkcs12(_read(path), password.encode() or None)
    except ValueError as error:
        raise BadKeyStore(f"{path} cannot be opened: the password is wrong, or it is not a PKCS #12 file") from error
    except UnsupportedAlgorithm as error:
        raise BadKeyStore(f"{path} has an unsupported algorithm: {error}; use RSA or NIST curves") from error
    every = [one.certificate for one in ([found.cert] if found.cert else []) + list(found.additional_certs)]
    if found.cert is not None:
        every = _chain(every)
    certificates = b"".join(each.public_bytes(Encoding.PEM) for each in every)
    key = b"" if found.key is None else found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return key.decode(), certificates.decode()


def _chain(certificates: list[Certificate]) -> list[Certificate]:
    """Return the first certificate, its issuer, the issuer's issuer, and so on: the order that peers expect."""
    chain, others = certificates[:1], certificates[1:]
    while found := next((one for one in others if one.subject == chain[-1].issuer and one not in chain), None):
        chain.append(found)
    return chain


def _text(path: str) -> str:
    return _read(path).decode("latin-1")  # comments between the blocks may be in any encoding


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadKeyStore(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error
