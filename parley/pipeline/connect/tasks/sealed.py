"""A connection between two processes that know one key: the worker, and a host of tasks in an executor.

Messages are pickles: a stranger that could send one could run any code. They also contain passwords. So:

1. Both ends begin with a random number. The keys of the connection are derived from the shared key and from both
   numbers: messages that were recorded on another connection are worthless.
2. Each message is sealed with its sender's key and its number, and is unpickled only if the seal is right. A message
   cannot be forged, changed, left out, repeated, or sent back to its sender.
3. If both ends have the library ``cryptography``, messages are encrypted (AES-256-GCM); otherwise they are only
   authenticated (HMAC-SHA256). The keys depend on what both ends have said about this: no third party can prevent it.
4. A stranger that connects and sends nothing, or too much, is disconnected after ``GREETING_S``.
"""

from __future__ import annotations

import hmac
import os
import pickle
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

__all__ = ["GREETING_S", "Sealed", "Stranger", "sealed"]

GREETING_S: Final = 10
_RANDOM_BYTES: Final = 32
_SEAL_BYTES: Final = 32
_GREETING: Final = b"parley connect 2"
_PLAIN, _ENCRYPTS = b"\x00", b"\x01"


class Stranger(OSError):
    """The other end does not know the key, or a third party has changed its messages."""


class _Seal(Protocol):
    """The seal of the messages in one direction."""

    def close(self, number: int, content: bytes) -> bytes:
        """Return the message with this number as it is sent."""

    def open(self, number: int, message: bytes) -> bytes:
        """Return the content of the message with this number. Raises Stranger."""


class _Authenticated:
    """Messages that anyone can read, and only the other end can make."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def close(self, number: int, content: bytes) -> bytes:
        return self._digest(number, content) + content

    def open(self, number: int, message: bytes) -> bytes:
        seal, content = message[:_SEAL_BYTES], message[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._digest(number, content)):
            raise Stranger("a message was not sealed with the key")
        return content

    def _digest(self, number: int, content: bytes) -> bytes:
        made = hmac.new(self._key, struct.pack(">Q", number), "sha256")
        made.update(content)
        return made.digest()


class _Encrypted:
    """Messages that only the two ends can read or make."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(key)

    def close(self, number: int, content: bytes) -> bytes:
        return self._cipher.encrypt(number.to_bytes(12), content, None)

    def open(self, number: int, message: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(number.to_bytes(12), message, None)
        except InvalidTag:
            raise Stranger("a message was not sealed with the key") from None


class Sealed:
    """One end of such a connection. ``send`` may be called by one thread at a time, ``recv`` by another."""

    def __init__(self, connection: Connection, own: _Seal, other: _Seal) -> None:
        self._connection = connection
        self._own, self._other = own, other
        self._sent = self._received = 0

    @property
    def is_encrypted(self) -> bool:
        """False if a third party can read the messages."""
        return isinstance(self._own, _Encrypted)

    def send(self, message: Any) -> None:
        """Send a message. Raises OSError if the other end cannot be reached."""
        self._put(pickle.dumps(message))

    def recv(self) -> Any:
        """Return the next message. Raises EOFError at the end, Stranger if the message is not the other end's."""
        return pickle.loads(self._take())

    def poll(self, seconds: float) -> bool:
        """True if a message or the end of the connection arrives within that time."""
        return self._connection.poll(seconds)

    def close(self) -> None:
        """End the connection, also for a thread that is sending."""
        with suppress(OSError), _socket(self._connection) as under:
            under.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def greet(self) -> None:
        """Prove that this end knows the key, and check that the other end does. Raises Stranger, OSError, EOFError."""
        self._put(_GREETING)
        if self._take(_SEAL_BYTES + len(_GREETING)) != _GREETING:
            raise Stranger("it has another version of Parley")

    def _put(self, content: bytes) -> None:
        self._connection.send_bytes(self._own.close(self._sent, content))
        self._sent += 1

    def _take(self, most: int | None = None) -> bytes:
        content = self._other.open(self._received, self._connection.recv_bytes(most))
        self._received += 1
        return content


def sealed(connection: Connection, key: bytes, *, is_worker: bool, can_encrypt: bool | None = None) -> Sealed:
    """Return the sealed connection when both ends, one of them the worker, have proved that they know the key.

    ``can_encrypt`` is by default True if the library is there. Raises Stranger, OSError or EOFError; the connection is
    closed then.
    """
    if can_encrypt is None:
        can_encrypt = find_spec("cryptography") is not None
    mine = (_ENCRYPTS if can_encrypt else _PLAIN) + secrets.token_bytes(_RANDOM_BYTES)
    try:
        with _in_time(connection):
            connection.send_bytes(mine)
            other = connection.recv_bytes(len(mine))
            of_worker, of_host = (mine, other) if is_worker else (other, mine)
            seal = _Encrypted if can_encrypt and other.startswith(_ENCRYPTS) else _Authenticated
            ends = [seal(hmac.digest(key, name + of_worker + of_host, "sha256")) for name in (b"worker", b"host")]
            own, others = ends if is_worker else reversed(ends)
            made = Sealed(connection, own, others)
            made.greet()
    except BaseException:
        connection.close()
        raise
    return made


@contextmanager
def _in_time(connection: Connection) -> Iterator[None]:
    """Let reading and writing fail with OSError if they take longer than ``GREETING_S``."""
    with _socket(connection) as under:
        _limit(under, GREETING_S)
        yield
        _limit(under, 0)


def _limit(under: socket.socket, seconds: int) -> None:
    """Limit how long one read or write may take; 0 means no limit."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        under.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))


def _socket(connection: Connection) -> socket.socket:
    """Return a duplicate of the connection's socket, which the caller closes."""
    return socket.socket(fileno=os.dup(connection.fileno()))
