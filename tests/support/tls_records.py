"""A hostile TLS client: after an honest handshake it encrypts arbitrary records.

OpenSSL does not let a program send a KeyUpdate, an empty record or an alert at will. This client takes the secrets of
the handshake from OpenSSL's key log, and encrypts by itself (RFC 8446, section 5; RFC 5246 and 5288 for TLS 1.2).
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ALERT: Final = 21
HANDSHAKE: Final = 22
DATA: Final = 23
KEY_UPDATE: Final = b"\x18\x00\x00\x01\x00"
KEY_UPDATE_ASKS_FOR_ONE: Final = b"\x18\x00\x00\x01\x01"
CIPHER: Final = "ECDHE-ECDSA-AES256-GCM-SHA384"
"""The TLS 1.2 cipher suite of this client. The TLS 1.3 suites with AES-256 use SHA-384."""


class HostileClient:
    """A client that has completed the handshake, and can now send any records."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secrets: dict[str, bytes]) -> None:
        self.reader, self.writer = reader, writer
        self._sequence = 0
        self._is_13 = "CLIENT_TRAFFIC_SECRET_0" in secrets
        if self._is_13:
            self._rekey(secrets["CLIENT_TRAFFIC_SECRET_0"])
        else:
            seed = b"key expansion" + secrets["server random"] + secrets["client random"]
            block = _prf(secrets["CLIENT_RANDOM"], seed, 72)
            self._cipher, self._iv = AESGCM(block[:32]), block[64:68]
            self._sequence = 1  # the client's Finished

    def _rekey(self, secret: bytes) -> None:
        self._secret, self._sequence = secret, 0
        self._cipher = AESGCM(_expand_label(secret, b"key", 32))
        self._iv = _expand_label(secret, b"iv", 12)

    def record(self, content: bytes, kind: int = DATA) -> bytes:
        """Encrypt one record."""
        number = self._sequence.to_bytes(8)
        self._sequence += 1
        if self._is_13:
            header = bytes((DATA, 3, 3)) + (len(content) + 17).to_bytes(2)
            nonce = bytes(a ^ b for a, b in zip(self._iv, bytes(4) + number, strict=True))
            return header + self._cipher.encrypt(nonce, content + bytes([kind]), header)
        authenticated = number + bytes((kind, 3, 3)) + len(content).to_bytes(2)
        body = number + self._cipher.encrypt(self._iv + number, content, authenticated)
        return bytes((kind, 3, 3)) + len(body).to_bytes(2) + body

    def key_update(self, message: bytes = KEY_UPDATE) -> bytes:
        """Encrypt a KeyUpdate. Later records are encrypted with the next keys."""
        sent = self.record(message, HANDSHAKE)
        self._rekey(_expand_label(self._secret, b"traffic upd", 48))
        return sent

    async def flood(self, data: bytes) -> None:
        """Send ``data`` without reading, until the broker has closed the connection or all is sent."""
        with suppress(OSError):
            self.writer.write(data)
            await self.writer.drain()

    async def is_closed(self) -> bool:
        """Read until the broker closes the connection. Returns True if it does."""
        with suppress(OSError):
            while await self.reader.read(65536):
                pass
        return True


async def hostile(
    address: tuple[str, int], context: Callable[[], ssl.SSLContext], version: ssl.TLSVersion
) -> HostileClient:
    """Connect and complete an honest handshake. ``context`` creates a new context, whose options this
    function changes."""
    own = context()
    own.minimum_version = own.maximum_version = version
    own.set_ciphers(CIPHER)
    reader, writer = await asyncio.open_connection(*address)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with TemporaryDirectory() as folder:
        log = Path(folder, "keys")
        own.keylog_filename = str(log)
        tls = own.wrap_bio(incoming, outgoing, server_hostname="localhost")
        received = sent = b""
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sent += (piece := outgoing.read())
                writer.write(piece)
                received += (piece := await reader.read(65536))
                incoming.write(piece)
        writer.write(outgoing.read())
        await writer.drain()
        secrets = _secrets(log)
    # A hello is the first record: its random number stands behind the headers of the record and of the message.
    secrets["client random"], secrets["server random"] = sent[11:43], received[11:43]
    return HostileClient(reader, writer, secrets)


def _secrets(log: Path) -> dict[str, bytes]:
    lines = [line.split() for line in log.read_text().splitlines() if not line.startswith("#")]
    return {label: bytes.fromhex(secret) for label, _, secret in lines}


def _expand_label(secret: bytes, label: bytes, size: int) -> bytes:
    info = size.to_bytes(2) + bytes([6 + len(label)]) + b"tls13 " + label + b"\x00"
    return hmac.digest(secret, info + b"\x01", "sha384")[:size]


def _prf(secret: bytes, seed: bytes, size: int) -> bytes:
    """Return the pseudorandom function of TLS 1.2."""
    output, step = b"", seed
    while len(output) < size:
        step = hmac.digest(secret, step, "sha384")
        output += hmac.digest(secret, step + seed, "sha384")
    return output[:size]
