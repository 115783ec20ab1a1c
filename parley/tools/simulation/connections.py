"""Connections of the simulated network: two pipes each, with an asyncio transport at either end.

``links.py`` decides how long their segments take. ``network.py`` creates the connections.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import zlib
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from parley.tools.simulation.links import Links
from parley.tools.simulation.processes import Process, ProcessState

HIGH_WATER_BYTES = 256 << 10
LOW_WATER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Data:
    """A segment of bytes."""

    content: bytes

    def __str__(self) -> str:
        return f"{len(self.content)} {zlib.crc32(self.content):08x}"


@dataclass(frozen=True, slots=True)
class End:
    """The end of a connection: RST if it was reset, otherwise FIN."""

    reset: bool

    def __str__(self) -> str:
        return "reset" if self.reset else "end"


Segment = Data | End


class ListeningSocket(socket.socket):
    """A broker's listening socket: an address in the simulated network, not a socket of the operating system."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: tuple[str, int],
        number: int,
        process: Process | None,
        on_close: Callable[[ListeningSocket], None],
    ) -> None:
        self.process = process
        self.listens = False
        self._loop = loop
        self._on_close = on_close
        self._address = address
        self._number = number
        self._waiting: deque[Transport] = deque()
        self._reader: asyncio.Handle | None = None

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def fileno(self) -> int:
        return self._number

    def setblocking(self, flag: bool) -> None:
        """Do nothing: this socket never blocks."""

    def listen(self, backlog: int = 0) -> None:
        self.listens = True

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        end = self._waiting.popleft()
        return AcceptedSocket(end), end.get_extra_info("peername")

    def close(self) -> None:
        self._number = -1
        self._reader = None
        self._on_close(self)
        for end in self._waiting:
            end.abort()

    # --- For the network and the loop ---

    def arrived(self, end: Transport) -> None:
        """Add a connection to those that wait to be accepted."""
        self._waiting.append(end)
        self._call_reader()

    def watch(self, reader: asyncio.Handle | None) -> None:
        """Set the callback for waiting connections. None removes it."""
        self._reader = reader
        self._call_reader()

    def _call_reader(self) -> None:
        if self._reader is not None and self._waiting:
            context = self.process.context if self.process is not None else Context()
            self._loop.call_soon(self._readable, context=context)

    def _readable(self) -> None:
        if self._reader is not None and self._waiting:
            self._reader._run()
            self._call_reader()


class AcceptedSocket(socket.socket):
    """A connection that is accepted, but has no transport yet."""

    def __init__(self, end: Transport) -> None:
        self.end = end

    def setblocking(self, flag: bool) -> None:
        """Do nothing: this socket never blocks."""

    def close(self) -> None:
        self.end.close()


class Pipe:
    """One direction of a connection."""

    def __init__(self, links: Links, source: str, target: str, name: str) -> None:
        self.source = source
        self.target = target
        self.name = name
        self.queue: deque[Segment] = deque()
        self.bytes_unread = 0
        self.receiver: Transport
        self._links = links
        self._last_arrival = 0.0
        links.call_when_improved(self.retransmit)

    def send(self, segment: Segment) -> None:
        """Send a segment."""
        if isinstance(segment, Data):
            self.bytes_unread += len(segment.content)
        self.queue.append(segment)
        self._travel(self._links.latency())

    def retransmit(self) -> None:
        """Send the waiting segments again if the hosts can reach each other."""
        if self.queue and self._links.reaches(self.source, self.target):
            for _ in self.queue:
                self._travel(self._links.retransmission())

    def forget(self) -> None:
        """Stop retransmitting: the connection is closed at both ends."""
        self._links.stop_calling(self.retransmit)

    def _travel(self, latency: float) -> None:
        loop = self._links.loop
        self._last_arrival = max(self._last_arrival, loop.time() + latency)
        loop.call_at(self._last_arrival, self._arrive, context=Context())

    def _arrive(self) -> None:
        if not self.queue or not self._links.reaches(self.source, self.target):
            return
        segment = self.queue.popleft()
        self._links.on_arrival(f"{self.name} {segment}")
        self.receiver.take(segment)

    def drop_some(self, rng: Random) -> None:
        """Drop a random number of the last segments in flight, possibly none or all."""
        kept = rng.randint(0, len(self.queue))
        while len(self.queue) > kept:
            self.queue.pop()


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        links: Links,
        process: Process | None,
        local: tuple[str, int],
        remote: tuple[str, int],
        incoming: Pipe,
        outgoing: Pipe,
        on_lost: Callable[[Transport], None],
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self.process = process
        self._links = links
        self._on_lost = on_lost
        self.incoming = incoming
        self.outgoing = outgoing
        self._protocol: asyncio.BaseProtocol | None = None
        self._inbox: deque[Segment] = deque()
        self._reading = True
        self._paused = False
        self._closing = False
        self.lost = False
        incoming.receiver = self

    @property
    def other_end(self) -> Transport:
        """The other end of the connection."""
        return self.outgoing.receiver

    # --- For the other end ---

    def take(self, segment: Segment) -> None:
        """Receive a segment that has arrived at the host. The process reads it when it next runs. If the process is
        dead, the connection is reset."""
        process = self.process
        if process is not None and process.state is ProcessState.DEAD:
            if not (isinstance(segment, End) and segment.reset):
                self.outgoing.send(End(reset=True))
            return
        self._inbox.append(segment)
        self._soon(self._read)

    def connect(self, protocol: asyncio.BaseProtocol) -> None:
        """Attach the protocol, call its ``connection_made``, and deliver what has already arrived."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._read()

    def reset(self) -> None:
        """Reset the connection. The last segments in flight are lost."""
        self.outgoing.drop_some(self._links.rng)
        self.outgoing.send(End(reset=True))

    # --- In the process ---

    def _soon(self, work: Callable[..., object], *args: Any) -> None:
        context = self.process.context if self.process is not None else Context()
        self._links.loop.call_soon(work, *args, context=context)

    def _read(self) -> None:
        while self._inbox and self._reading and not self.lost and self._protocol is not None:
            segment = self._inbox.popleft()
            if isinstance(segment, Data):
                if not self._closing:
                    self._deliver(segment.content)
                self.incoming.bytes_unread -= len(segment.content)
                self._incoming_eased()
            elif segment.reset:
                self._end(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            elif not self._closing and not cast(asyncio.Protocol, self._protocol).eof_received():
                self.close()

    def _deliver(self, content: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, protocol).data_received(content)
            return
        done = 0
        while done < len(content) and not self._closing:
            buffer = memoryview(protocol.get_buffer(len(content) - done))
            count = min(len(buffer), len(content) - done)
            buffer[:count] = content[done : done + count]
            done += count
            protocol.buffer_updated(count)

    def _incoming_eased(self) -> None:
        sender = self.other_end
        if sender._paused and self.incoming.bytes_unread <= LOW_WATER_BYTES:
            sender._soon(sender._resume_writing)

    def _resume_writing(self) -> None:
        if self._paused and not self.lost and self.outgoing.bytes_unread <= LOW_WATER_BYTES:
            self._paused = False
            assert self._protocol is not None
            self._protocol.resume_writing()

    def _end(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self._closing = True
            self._on_lost(self)
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    # --- asyncio.Transport ---

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._soon(self._read)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        for piece in self._links.pieces(bytes(data)):
            self.outgoing.send(Data(piece))
        if not self._paused and self.outgoing.bytes_unread > HIGH_WATER_BYTES and self._protocol is not None:
            self._paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.outgoing.bytes_unread if self._paused else 0

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.outgoing.send(End(reset=False))
            self._soon(self._end, None)

    def abort(self) -> None:
        if not self.lost:
            self._closing = True
            self.reset()
            self._soon(self._end, None)
