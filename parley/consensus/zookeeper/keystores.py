"""Key stores and trust stores as Kafka's configuration names them: PEM (also with an encrypted key) and PKCS #12.

The first bytes of a file show its format, whatever its name. kazoo and Python's ``ssl`` read PEM files only. So the
content of a PKCS #12 file is passed to them in temporary PEM files, with the key encrypted under a random password.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from parley.consensus.errors import BadConfig

_PKCS12 = b"\x30"
_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


@dataclass(frozen=True, slots=True)
class Keystores:
    """The content of PKCS #12 files as PEM; empty parts were not in a file."""

    certificates: bytes = b""
    key: bytes = field(default=b"", repr=False)
    """Encrypted with ``password``."""
    password: str = field(default="", repr=False)
    authorities: bytes = b""

    @contextmanager
    def as_options(self) -> Iterator[dict[str, str]]:
        """Yield kazoo's options for the content. The files that they name exist only inside the block."""
        if not self.key and not self.authorities:
            yield {}
            return
        with TemporaryDirectory(prefix="parley-") as directory:
            options = {}
            for option, content in (("certfile", self.certificates), ("keyfile", self.key), ("ca", self.authorities)):
                if content:
                    path = Path(directory, option)
                    path.write_bytes(content)
                    options[option] = str(path)
            yield options | ({"keyfile_password": self.password} if self.key else {})


def is_pem(path: str) -> bool:
    """True if a file is PEM, False if it is PKCS #12. Blocks.

    Raises BadConfig if it is a JKS keystore, which only Java can read, or if the file cannot be read.
    """
    begin = _read(path)[:4]
    if begin in _JKS:
        raise BadConfig(
            f"{path} is a Java keystore of the old kind (JKS); convert it to PKCS #12: "
            f"keytool -importkeystore -srckeystore {path} -destkeystore {Path(path).stem}.p12 -deststoretype pkcs12"
        )
    return not begin.startswith(_PKCS12)


def read_pkcs12(path: str, password: str, *, wants_key: bool) -> Keystores:
    """Read the key and its certificates, or the certificates to trust. Blocks.

    Raises BadConfig if the file holds none, if the password is wrong, or if ``cryptography`` is not installed.
    """
    try:
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ImportError as error:
        raise BadConfig(f"{path} is PKCS #12: run `pip install cryptography`, or convert it to PEM") from error
    try:
        found = load_pkcs12(_read(path), password.encode() or None)
    except ValueError as error:
        raise BadConfig(f"{path} cannot be opened: the password is wrong, or it is not a PKCS #12 file") from error
    every = ([found.cert] if found.cert else []) + list(found.additional_certs)
    certificates = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in every)
    if not certificates or (wants_key and found.key is None):
        raise BadConfig(f"{path} contains no {'key with a certificate' if wants_key else 'certificate'}")
    if not wants_key or found.key is None:
        return Keystores(authorities=certificates)
    secret = secrets.token_urlsafe(24)
    encrypted = BestAvailableEncryption(secret.encode())
    key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encrypted)
    return Keystores(certificates, key, secret)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadConfig(f"zookeeper: {path} cannot be read: {type(error).__name__}") from error
