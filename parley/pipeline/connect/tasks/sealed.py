"""A connection between two processes that know one key, whose messages are sealed.

Messages are pickles, and whoever can put one in may have anything done. So:

1. Both ends begin with a random number. The seal's key is made of the key that both know and of both numbers: what was
   recorded of another connection is worth nothing.
2. Each message is sealed with HMAC-SHA256 over its sender, its number and its content. It is looked at only if the seal
   is right: none can be made up, changed, left out, sent twice or sent back.
3. A sealed message is not a secret one: who can listen on the network reads it.
4. A stranger who connects and says nothing, or too much, is given up after `GREETING_S`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final

__all__ = ["GREETING_S", "Sealed", "Stranger", "sealed"]

GREETING_S: Final = 10
_NONCE_BYTES: Final = 32
_SEAL_BYTES: Final = hashlib.sha256().digest_size
_GREETING: Final = b"parley connect 1"


class Stranger(OSError):
    """The other end does not know the key, or somebody has changed what it sent."""


class Sealed:
    """One end of such a connection. `send` may be called by one thread at a time, `recv` by another."""

    def __init__(self, connection: Connection, key: bytes, own: bytes, other: bytes) -> None:
        self._connection = connection
        self._key = key
        self._own, self._other = own, other
        self._sent = self._received = 0

    def send(self, message: Any) -> None:
        """Raises OSError where the other end cannot be reached."""
        content = pickle.dumps(message)
        self._connection.send_bytes(self._seal(self._own, self._sent, content) + content)
        self._sent += 1

    def recv(self) -> Any:
        """The next message. Raises EOFError at the end, Stranger for one that is not the other end's."""
        return pickle.loads(self._take())

    def poll(self, seconds: float) -> bool:
        """Whether there is a message, or the end, within that time."""
        return self._connection.poll(seconds)

    def close(self) -> None:
        """End the connection, for a thread that is sending, too."""
        with suppress(OSError), _socket(self._connection) as under:
            under.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def greet(self) -> None:
        """Show the other end that the key is known, and see that it is. Raises Stranger, OSError, EOFError."""
        self._connection.send_bytes(self._seal(self._own, self._sent, _GREETING) + _GREETING)
        self._sent += 1
        if self._take(_SEAL_BYTES + len(_GREETING)) != _GREETING:
            raise Stranger("it speaks another version")

    def _take(self, most: int | None = None) -> bytes:
        """The content of the next message, whose seal is right."""
        received = self._connection.recv_bytes(most)
        seal, content = received[:_SEAL_BYTES], received[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal(self._other, self._received, content)):
            raise Stranger("a message was not sealed with the key")
        self._received += 1
        return content

    def _seal(self, sender: bytes, number: int, content: bytes) -> bytes:
        made = hmac.new(self._key, sender + struct.pack(">Q", number), "sha256")
        made.update(content)
        return made.digest()


def sealed(connection: Connection, key: bytes, *, is_worker: bool) -> Sealed:
    """The connection, once both ends have shown that they know the key; one of them is the worker.

    Raises Stranger, OSError or EOFError; the connection is closed then.
    """
    names = (b"worker", b"host") if is_worker else (b"host", b"worker")
    mine = secrets.token_bytes(_NONCE_BYTES)
    try:
        with _in_time(connection):
            connection.send_bytes(mine)
            other = connection.recv_bytes(_NONCE_BYTES)
            both = mine + other if is_worker else other + mine
            made = Sealed(connection, hmac.digest(key, both, "sha256"), *names)
            made.greet()
    except BaseException:
        connection.close()
        raise
    return made


@contextmanager
def _in_time(connection: Connection) -> Iterator[None]:
    """Reading and writing fail with OSError if they take longer than `GREETING_S`."""
    with _socket(connection) as under:
        _limit(under, GREETING_S)
        yield
        _limit(under, 0)


def _limit(under: socket.socket, seconds: int) -> None:
    """How long one read or write may take; 0: as long as it likes."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        under.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))


def _socket(connection: Connection) -> socket.socket:
    """The socket of a connection, to be closed on its own."""
    return socket.socket(fileno=os.dup(connection.fileno()))
