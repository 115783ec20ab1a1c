"""Sends responses, which consist of buffers and file slices, in order and no faster than the client reads.

Two senders have the same interface. ``SocketSender`` writes to the socket: ``send`` for buffers, ``sendfile`` for
slices of log files, whose bytes never enter the process. (At 1 MiB per response, that takes 0.09 CPU seconds per GB
instead of 0.28. Pipelined small responses cost a quarter of what the transport's queue costs.) ``TransportSender``
serves connections without a plain socket: TLS and the simulated network. It reads slices piece by piece as the client
reads. While a sender is ``blocked``, the connection begins no request, so that the sender holds at most the pending
responses.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from mypy_extensions import mypyc_attr

from parley.protocol.schema import Buffer

TURN_BYTES = 4 << 20
"""The number of bytes sent to one client before other connections get a turn, however fast the client reads."""
PIECE_BYTES = 1 << 20
"""The number of bytes read from a file at a time if sendfile cannot be used."""
JOINED_BYTES = 16 << 10
"""Buffers of up to this total size are joined for one ``send``. Above this size, copying costs more than
``sendmsg``."""
LEFT_BYTES = 16 << 10
"""The number of bytes given to the transport when the socket is full."""
PROBE_BYTES = 256 << 10
"""The distance between the bytes that are read to find out whether a slice is in memory."""
_BUFFERS_MAX = 512
_probe = bytearray(1)


class FileSlice:
    """``size`` bytes at ``position`` of an open file, which ``owner`` keeps open."""

    __slots__ = ("_owner", "fd", "position", "size")

    def __init__(self, fd: int, position: int, size: int, owner: object) -> None:
        self.fd = fd
        self.position = position
        self.size = size
        self._owner = owner

    def __len__(self) -> int:
        return self.size

    def read(self, start: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``start``, relative to the slice. Raises OSError if they cannot be read,
        for example SliceLost if the file ends before ``start``."""
        data = os.pread(self.fd, min(size, self.size - start), self.position + start)
        if not data:
            raise self.lost()
        return data

    def is_cached(self) -> bool:
        """Return True if the bytes seem to be in memory, so that sending them does not wait for the disk.

        Probes one byte in every ``PROBE_BYTES``, because the system reads ahead and evicts in larger pieces.
        """
        for offset in (*range(0, self.size, PROBE_BYTES), self.size - 1):
            try:
                os.preadv(self.fd, (_probe,), self.position + offset, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True  # the file system does not support the probe
        return True

    def load(self) -> None:
        """Read the bytes into the page cache. Blocks on the disk. Raises OSError if they cannot be read."""
        buffer = bytearray(min(PIECE_BYTES, self.size))
        for offset in range(0, self.size, len(buffer)):
            os.preadv(self.fd, (buffer,), self.position + offset)

    def lost(self) -> SliceLost:
        """Return the error for a file that was truncated."""
        return SliceLost(f"a log file ended before position {self.position + self.size}: it was truncated")


Part = Buffer | FileSlice


@mypyc_attr(native_class=False)
class SliceLost(OSError):
    """Raised if the file ends before the slice does. The response cannot be completed, so the connection must be
    closed."""


def _memory_bytes(parts: Iterable[Part]) -> int:
    return sum(len(part) for part in parts if not isinstance(part, FileSlice))


class Sender:
    """Sends the parts of responses, in order. A base class, not a protocol, so that compiled calls are direct."""

    __slots__ = ("blocked", "sent_bytes")

    def __init__(self) -> None:
        self.blocked = False
        """True while bytes wait for the client to read."""
        self.sent_bytes = 0
        """The number of bytes sent so far."""

    @property
    def held_bytes(self) -> int:
        """The number of bytes still to be sent, including bytes in files."""
        raise NotImplementedError

    @property
    def memory_bytes(self) -> int:
        """The number of bytes still to be sent that are in memory, not in files."""
        raise NotImplementedError

    def send(self, parts: Sequence[Part]) -> None:
        """Send ``parts`` after all earlier parts, now or as the client reads. Raises OSError if the connection is
        broken, for example SliceLost if a file was truncated."""
        raise NotImplementedError

    def pause(self) -> None:
        """Stop writing: the transport's buffer is full."""
        raise NotImplementedError

    def resume(self) -> None:
        """Write again: the client has read most of the transport's buffer."""
        raise NotImplementedError

    def close(self) -> None:
        """Drop the parts that have not been sent."""
        raise NotImplementedError


def make_sender(
    transport: asyncio.Transport,
    loop: asyncio.AbstractEventLoop,
    on_drained: Callable[[], None],
    on_broken: Callable[[OSError], None],
) -> Sender:
    """Return the sender for a transport. Raises OSError if the socket of the transport is already closed.

    ``on_drained`` is called when a blocked sender has sent everything. ``on_broken`` is called if sending fails outside
    of ``send``.
    """
    plain = transport.get_extra_info("socket")
    if plain is None or transport.get_extra_info("ssl_object") is not None:
        return TransportSender(transport, on_drained)
    own = socket.socket(plain.family, plain.type, plain.proto, fileno=plain.fileno())
    own.setblocking(False)
    return SocketSender(transport, own, loop, on_drained, on_broken)


class SocketSender(Sender):
    """Sends directly on the transport's plain socket, bypassing the transport.

    When the socket is full, the transport gets a small piece and reports when the socket has accepted it, so that the
    event loop watches no second descriptor. The transport closes the socket.
    """

    __slots__ = (
        "_drained",
        "_fd",
        "_held",
        "_is_paused",
        "_is_scheduled",
        "_loop",
        "_offset",
        "_on_broken",
        "_socket",
        "_transport",
    )

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_drained: Callable[[], None],
        on_broken: Callable[[OSError], None],
    ) -> None:
        """``sock`` is a second socket object for the transport's descriptor."""
        super().__init__()
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._drained = on_drained
        self._on_broken = on_broken
        self._held: deque[Part] = deque()
        self._offset = 0  # how many bytes of the first held part have been sent
        self._is_paused = False  # the transport holds bytes because the socket is full
        self._is_scheduled = False

    @property
    def held_bytes(self) -> int:
        return sum(map(len, self._held)) - self._offset

    @property
    def memory_bytes(self) -> int:
        return _memory_bytes(self._held)

    def send(self, parts: Sequence[Part]) -> None:
        if self.blocked:
            self._held.extend(parts)
            return
        if len(parts) == 1 and not isinstance(parts[0], FileSlice):
            # The usual case, one small response: nothing is queued if the socket accepts all of it.
            try:
                sent = self._socket.send(parts[0])
            except BlockingIOError:
                sent = 0
            self.sent_bytes += sent
            if sent == len(parts[0]):
                return
            self._offset = sent
        self._held.extend(parts)
        if not self._flush():
            self.blocked = True

    def close(self) -> None:
        if self._fd >= 0:
            self._fd = -1
            self._socket.detach()
        self._held.clear()
        self._offset = 0
        self.blocked = False

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._send_on()

    def _send_on(self) -> None:
        """Continue sending: the transport may have sent its piece, or the other connections have had their turn."""
        self._is_scheduled = False
        if not self.blocked or self._is_paused or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size():
            self._send_on_soon()
            return
        try:
            if not self._flush():
                return
        except OSError as broken:
            self._on_broken(broken)
            return
        self.blocked = False
        self._drained()

    def _send_on_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._send_on)

    def _leave_piece(self) -> None:
        """Give the transport some bytes, so that it reports when the socket has room again."""
        part = self._held[0]
        if isinstance(part, FileSlice):
            piece: Buffer = part.read(self._offset, LEFT_BYTES)
        else:
            piece = bytes(memoryview(part)[self._offset : self._offset + LEFT_BYTES])
        self.sent_bytes += len(piece)
        self._forget(len(piece))
        self._transport.write(piece)

    def _flush(self) -> bool:
        """Send as much as the socket accepts. Returns True if nothing is left; otherwise a later call is scheduled."""
        held = self._held
        budget = TURN_BYTES
        try:
            while held and budget > 0:
                if isinstance(held[0], FileSlice):
                    sent = self._send_slice(held[0])
                else:
                    sent = self._send_buffers()
                budget -= sent
                self.sent_bytes += sent
                self._forget(sent)
            if not held:
                return True
        except BlockingIOError:
            if self._transport.is_closing():
                return False
            self._leave_piece()
        if not self._is_paused:
            self._send_on_soon()
        return False

    def _send_slice(self, part: FileSlice) -> int:
        sent = os.sendfile(self._fd, part.fd, part.position + self._offset, len(part) - self._offset)
        if sent == 0:
            raise part.lost()
        return sent

    def _send_buffers(self) -> int:
        """Send the buffers at the head of the queue in one call, up to the next file slice."""
        buffers: list[Buffer] = []
        size = flags = 0
        for part in self._held:
            if isinstance(part, FileSlice):
                flags = socket.MSG_MORE
                break
            if len(buffers) == _BUFFERS_MAX:
                break
            buffers.append(part)
            size += len(part)
        if self._offset:
            buffers[0] = memoryview(buffers[0])[self._offset :]
            size -= self._offset
        if len(buffers) == 1:
            return self._socket.send(buffers[0], flags)
        if size <= JOINED_BYTES:
            return self._socket.send(b"".join(buffers), flags)
        return self._socket.sendmsg(buffers, (), flags)

    def _forget(self, sent: int) -> None:
        sent += self._offset
        held = self._held
        while held and sent >= len(held[0]):
            sent -= len(held.popleft())
        self._offset = sent


class TransportSender(Sender):
    """Sends through an asyncio transport. The protocol forwards ``pause_writing`` and ``resume_writing``."""

    __slots__ = ("_drained", "_held", "_offset", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, on_drained: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._drained = on_drained
        self._held: deque[Part] = deque()
        self._offset = 0

    @property
    def held_bytes(self) -> int:
        return sum(map(len, self._held)) - self._offset + self._transport.get_write_buffer_size()

    @property
    def memory_bytes(self) -> int:
        return _memory_bytes(self._held) + self._transport.get_write_buffer_size()

    def send(self, parts: Sequence[Part]) -> None:
        self._held.extend(parts)
        self._flush()

    def close(self) -> None:
        self._held.clear()

    def pause(self) -> None:
        self.blocked = True

    def resume(self) -> None:
        self.blocked = False
        self._flush()
        if not self.blocked:
            self._drained()

    def _flush(self) -> None:
        held = self._held
        while held and not self.blocked:
            part = held[0]
            if not isinstance(part, FileSlice):
                held.popleft()
                self.sent_bytes += len(part)
                self._transport.write(part)
                continue
            piece = part.read(self._offset, PIECE_BYTES)
            self.sent_bytes += len(piece)
            self._offset += len(piece)
            if self._offset == len(part):
                held.popleft()
                self._offset = 0
            self._transport.write(piece)
