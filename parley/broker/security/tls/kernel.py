"""Kernel TLS: the Linux kernel encrypts what a connection sends, so that ``sendfile`` serves listeners with TLS, too.

The kernel only sends. OpenSSL does the handshake, and decrypts in memory what the client sends, so that one client
cannot hold the event loop. The rules:

- Only the key log reveals OpenSSL's keys. It is a pipe that only this process reads (``KeyLog``). It ends with the
  handshake: OpenSSL would log each new key of a client, and wait forever once the pipe is full.
- The kernel gets keys only if they decrypt the first record that OpenSSL sent with them, a session ticket. So no
  connection gets the keys of another.
- OpenSSL sends nothing afterwards, because its record numbers have stopped.

Only TLS 1.3 is supported. docs/security.md, "Kernel TLS", has the reasons.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

SetOption = Callable[[int, int, bytes], None]
"""``setsockopt`` of a socket: the level, the option and its value."""

_TCP_ULP, _SOL_TLS, _TLS_TX, _TLS_SET_RECORD_TYPE = 31, 282, 1, 1  # linux/tcp.h, linux/socket.h, linux/tls.h
_TLS_1_3: Final = 0x0304
_ALERT, _CLOSE_NOTIFY = 21, b"\x01\x00"
_HEADER_BYTES, _NONCE_BYTES = 5, 12
_RANDOM: Final = slice(11, 43)
"""The position of the client's random bytes in the first record of a client, its ClientHello (RFC 8446, 4.1.2)."""
_SECRETS_MAX: Final = 64
"""The maximum number of secrets that no connection has taken. Threads take a secret in the step that logs it, so
these belong to clients whose ClientHello is malformed or split."""


class _Cipher(NamedTuple):
    """How the kernel and RFC 8446 describe a cipher suite."""

    number: int
    """The number of the cipher in linux/tls.h."""
    digest: str
    """The name of the suite's hash function in ``cryptography``."""
    key_bytes: int
    salt_bytes: int
    """The number of leading bytes of the initialization vector that the kernel calls salt."""


_CIPHERS: Final = {
    "TLS_AES_128_GCM_SHA256": _Cipher(51, "SHA256", 16, 4),
    "TLS_AES_256_GCM_SHA384": _Cipher(52, "SHA384", 32, 4),
    "TLS_CHACHA20_POLY1305_SHA256": _Cipher(54, "SHA256", 32, 0),
}


class SendingKeys(NamedTuple):
    """The keys with which a server encrypts its records, until it changes them."""

    cipher: _Cipher
    key: bytes
    vector: bytes

    @classmethod
    def derived(cls, suite: str, secret: bytes) -> SendingKeys:
        """Derive the keys of the cipher suite from a traffic secret (RFC 8446, section 7.3).

        Raises KeyError if the kernel has no such suite.
        """
        cipher = _CIPHERS[suite]
        key = _expanded(cipher.digest, secret, b"key", cipher.key_bytes)
        return cls(cipher, key, _expanded(cipher.digest, secret, b"iv", _NONCE_BYTES))

    def verify_first(self, record: bytes) -> None:
        """Raise cryptography's InvalidTag unless ``record`` is the first that was encrypted with these keys."""
        self._algorithm()(self.key).decrypt(self.vector, record[_HEADER_BYTES:], record[:_HEADER_BYTES])

    def _algorithm(self) -> type[AESGCM | ChaCha20Poly1305]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

        return AESGCM if self.cipher.salt_bytes else ChaCha20Poly1305

    def for_kernel(self, number: int) -> bytes:
        """Return ``struct tls12_crypto_info_*`` (linux/tls.h). ``number`` is the number of the next record."""
        salt, rest = self.vector[: self.cipher.salt_bytes], self.vector[self.cipher.salt_bytes :]
        return struct.pack("=HH", _TLS_1_3, self.cipher.number) + rest + self.key + salt + struct.pack(">Q", number)


def _expanded(digest: str, secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label without a context (RFC 8446, section 7.1)."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    label = b"tls13 " + label
    info = struct.pack(">HB", size, len(label)) + label + b"\0"
    return HKDFExpand(getattr(hashes, digest)(), size, info).derive(secret)


def kernel_suites() -> frozenset[str]:
    """Return the cipher suites with which the kernel encrypts; none if it lacks the module ``tls``.

    Tries each on a connection of its own. Blocks for less than a millisecond. Raises OSError if it cannot connect to
    itself, for example because file descriptors have run out.
    """
    if sys.platform != "linux":
        return frozenset()
    with socket.create_server(("127.0.0.1", 0)) as server:
        return frozenset(suite for suite in _CIPHERS if _accepts(server.getsockname(), suite))


def _accepts(address: tuple[str, int], suite: str) -> bool:
    with socket.create_connection(address) as sock:
        try:
            _let_encrypt(sock.setsockopt, SendingKeys.derived(suite, b"").for_kernel(0))
        except OSError:
            return False
    return True


def _let_encrypt(setsockopt: SetOption, info: bytes) -> None:
    setsockopt(socket.IPPROTO_TCP, _TCP_ULP, b"tls")
    setsockopt(_SOL_TLS, _TLS_TX, info)


class KeyLog:
    """The traffic secrets of the handshakes of one context, which OpenSSL writes to a pipe."""

    def __init__(self, context: ssl.SSLContext, suites: frozenset[str]) -> None:
        """Make OpenSSL log the secrets of ``context``. ``suites`` are those of the kernel.

        Raises OSError if no pipe can be opened.
        """
        self.suites = suites
        self._silent = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._pipe, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._pipe)
        try:
            context.keylog_filename = f"/proc/self/fd/{writing}"
        finally:
            os.close(writing)  # OpenSSL has opened its own
        self._lock = threading.Lock()  # the steps of handshakes run in threads
        self._unread = b""
        self._secrets: dict[bytes, bytes] = {}

    def take(self, client_random: bytes) -> bytes | None:
        """Return the traffic secret with which the server sends, if the handshake has logged one since the last call;
        otherwise None.

        Call this after each step of a handshake: nothing else empties the pipe.
        """
        with self._lock:
            self._read()
            return self._secrets.pop(client_random, None)

    def leave(self, connection: ssl.SSLObject) -> None:
        """Stop logging the secrets of a connection whose handshake is complete.

        OpenSSL finds the log in the connection's context. A connection has taken everything else from its context by
        then.
        """
        connection.context = self._silent

    def _read(self) -> None:
        try:
            while received := os.read(self._pipe, 1 << 16):
                *lines, self._unread = (self._unread + received).split(b"\n")
                for line in lines:
                    self._add(line)
        except BlockingIOError:
            pass  # nothing more is logged

    def _add(self, line: bytes) -> None:
        label, _, rest = line.partition(b" ")
        if label != b"SERVER_TRAFFIC_SECRET_0":
            return
        client_random, _, secret = rest.partition(b" ")
        self._secrets[bytes.fromhex(client_random.decode())] = bytes.fromhex(secret.decode())
        if len(self._secrets) > _SECRETS_MAX:
            del self._secrets[next(iter(self._secrets))]


class KernelSending:
    """The handover of a connection's encryption from OpenSSL to the kernel.

    ``note_secret`` is called after each step of the handshake, and ``begin`` when it is complete and the socket has
    accepted all that OpenSSL has sent.
    """

    def __init__(self, log: KeyLog, first_record: bytes | bytearray) -> None:
        self._log = log
        self._random = bytes(first_record[_RANDOM])  # fewer bytes, for which there is no secret, if it is incomplete
        self._secret: bytes | None = None

    def note_secret(self) -> None:
        """Take this connection's secret from the key log. Runs in the thread of the step."""
        self._secret = self._log.take(self._random) or self._secret

    def begin(self, version: str | None, suite: str, sent: bytes, setsockopt: SetOption) -> bool:
        """Let the kernel encrypt what the socket sends from now on. Returns False if OpenSSL must do it.

        ``sent`` are the records that OpenSSL has sent since the client's last message.
        """
        from cryptography.exceptions import InvalidTag

        records = _split(sent)
        if version != "TLSv1.3" or suite not in self._log.suites or self._secret is None or not records:
            return False
        keys = SendingKeys.derived(suite, self._secret)
        try:
            keys.verify_first(records[0])
            _let_encrypt(setsockopt, keys.for_kernel(len(records)))
        except (InvalidTag, OSError):  # OSError: the kernel has no memory, or the client has disconnected
            return False
        return True


def _split(sent: bytes) -> list[bytes]:
    records = []
    while sent:
        size = _HEADER_BYTES + int.from_bytes(sent[3:_HEADER_BYTES], "big")
        records.append(sent[:size])
        sent = sent[size:]
    return records


def send_closing_alert(fd: int) -> None:
    """Send the alert that ends a TLS connection, if the socket accepts it now. Raises OSError if it does not."""
    sock = socket.socket(fileno=fd)
    try:
        sock.sendmsg([_CLOSE_NOTIFY], [(_SOL_TLS, _TLS_SET_RECORD_TYPE, bytes([_ALERT]))])
    finally:
        sock.detach()
