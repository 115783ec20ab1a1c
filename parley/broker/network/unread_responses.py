"""Limits the memory of responses that clients do not read, over all connections."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

UNREAD_BYTES_MAX: Final = 64 << 20
"""The maximum number of bytes of unread responses in memory. Above this limit, stalled connections are closed."""
STALLED_S: Final = 10.0
"""A client is stalled if it has read nothing for this many seconds. The more the unread responses exceed their limit,
the shorter this time: 5 s at twice the limit."""
CHECK_S: Final = 1.0
"""The interval, in seconds, at which the bytes are counted while a client does not read its responses."""


class SlowReader(Protocol):
    """A connection whose client does not read its responses as fast as the broker sends them."""

    def count_unread(self, seconds: float) -> int:
        """Return the number of bytes in memory that wait for the client to read.

        Adds ``seconds``, the time since the last call, to ``stalled_s`` if the client has read nothing since.
        """

    @property
    def stalled_s(self) -> float:
        """How long, in seconds, the client has read nothing."""

    def close(self, reason: str = "") -> None:
        """Close the connection, and log the reason."""


class UnreadResponses:
    """Limits the memory of responses that clients do not read.

    A connection whose client does not read begins no request, so it holds little memory, but there may be many such
    connections. Above ``UNREAD_BYTES_MAX``, stalled connections are closed until the rest is within the limit, starting
    with those that hold the most memory. A client that reads, however slowly, is not stalled. Time during which the
    event loop was blocked does not count.
    """

    def __init__(self) -> None:
        self._readers: set[SlowReader] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, reader: SlowReader) -> None:
        """Watch a connection until its client has read its responses. Idempotent."""
        self._readers.add(reader)
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self._timer = None
        sizes = {reader: reader.count_unread(CHECK_S) for reader in self._readers}
        self._readers = {reader for reader, size in sizes.items() if size}
        held = sum(sizes.values())
        if held > UNREAD_BYTES_MAX:
            patience_s = STALLED_S * UNREAD_BYTES_MAX / held
            for reader in sorted(self._readers, key=sizes.__getitem__, reverse=True):
                if held > UNREAD_BYTES_MAX and reader.stalled_s >= patience_s:
                    held -= sizes[reader]
                    reader.close("the client did not read its responses, and other clients need their memory")
        if self._readers:
            self._schedule()
