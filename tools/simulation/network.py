"""A network in memory: connections that are slow, cut, refused or swallowed, as the seed has it.

Rules of this module:

* A connection is two pipes. What goes into a pipe comes out in order, later, and in other pieces; between pipes
  nothing is in order.
* What must pass between two hosts that are parted, or to a host that is down, waits, as TCP does that sends again: it
  arrives some time after they have found together. Nobody is told. So a partition is silence, never a refusal.
* A process that dies resets its connections; a machine that dies says nothing, and once it is back it resets what is
  still sent to connections that it knows no more.
* Where nobody listens on a host that is up, a connection is refused.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from tools.simulation.loop import SimulatedLoop
from tools.simulation.processes import CURRENT, Process, ProcessState

HIGH_WATER_BYTES = 256 << 10
LOW_WATER_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 127.0
"""When Linux gives up to connect, with its default of six retransmissions."""
_EPHEMERAL = 32768
_FIRST_NUMBER = 1 << 24
"""Of sockets that are none: beyond any file descriptor."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How the network behaves. Times are in seconds, chances per segment."""

    latency_min: float = 0.0001
    latency_max: float = 0.002
    stall_chance: float = 0.001
    stall_max: float = 0.2
    """How long a stalled segment takes, as one that had to be sent again."""
    cut_chance: float = 0.3
    """How often a write is cut into pieces that arrive one by one."""

    @classmethod
    def drawn(cls, rng: Random) -> Weather:
        """Some weather: a quick network more often than a slow one."""
        slowest = rng.choice((0.001, 0.002, 0.005, 0.02))
        return cls(
            slowest / 20, slowest, rng.choice((0.0, 0.001, 0.01)), rng.choice((0.05, 0.3)), rng.choice((0.05, 0.5))
        )


@dataclass(frozen=True, slots=True)
class _Data:
    content: bytes


@dataclass(frozen=True, slots=True)
class _End:
    """FIN, or RST where the connection was reset."""

    reset: bool


_Segment = _Data | _End


class ListeningSocket(socket.socket):
    """What a broker binds and accepts on: an address, and no socket of the machine."""

    def __init__(self, network: Network, address: tuple[str, int], number: int, process: Process | None) -> None:
        self.process = process
        self.listens = False
        self._network = network
        self._address = address
        self._number = number
        self._waiting: deque[Transport] = deque()
        self._reader: asyncio.Handle | None = None

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def fileno(self) -> int:
        return self._number

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

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
        self._network.unbind(self)
        for end in self._waiting:
            end.abort()

    # For the network and the loop.

    def arrived(self, end: Transport) -> None:
        """A connection waits to be accepted."""
        self._waiting.append(end)
        self._call_reader()

    def watch(self, reader: asyncio.Handle | None) -> None:
        """Who is to be called while connections wait."""
        self._reader = reader
        self._call_reader()

    def _call_reader(self) -> None:
        if self._reader is not None and self._waiting:
            context = self.process.context if self.process is not None else Context()
            self._network.loop.call_soon(self._readable, context=context)

    def _readable(self) -> None:
        if self._reader is not None and self._waiting:
            self._reader._run()
            self._call_reader()


class AcceptedSocket(socket.socket):
    """A connection that was accepted and has no transport yet."""

    def __init__(self, end: Transport) -> None:
        self.end = end

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def close(self) -> None:
        self.end.close()


class _Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, source: str, target: str, name: str) -> None:
        self.source = source
        self.target = target
        self.name = name
        self.queue: deque[_Segment] = deque()
        self.bytes_unread = 0
        self.receiver: Transport
        self._network = network
        self._last_arrival = 0.0

    def send(self, segment: _Segment) -> None:
        """Put a segment on its way."""
        if isinstance(segment, _Data):
            self.bytes_unread += len(segment.content)
        self.queue.append(segment)
        self._travel(self._network.latency())

    def again(self) -> None:
        """The way is free again: what waited is sent again."""
        for _ in self.queue:
            self._travel(self._network.retransmission())

    def _travel(self, latency: float) -> None:
        loop = self._network.loop
        self._last_arrival = max(self._last_arrival, loop.time() + latency)
        loop.call_at(self._last_arrival, self._arrive, context=Context())

    def _arrive(self) -> None:
        network = self._network
        if not self.queue or not network.reaches(self.source, self.target):
            return
        segment = self.queue.popleft()
        network.note(self, segment)
        self.receiver.take(segment)

    def drop_some(self, rng: Random) -> None:
        """Lose the end of what is under way."""
        kept = rng.randint(0, len(self.queue))
        while len(self.queue) > kept:
            self.queue.pop()


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: Network,
        process: Process | None,
        local: tuple[str, int],
        remote: tuple[str, int],
        incoming: _Pipe,
        outgoing: _Pipe,
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self.process = process
        self._network = network
        self._incoming = incoming
        self._outgoing = outgoing
        self._protocol: asyncio.BaseProtocol | None = None
        self._inbox: deque[_Segment] = deque()
        self._reading = True
        self._paused = False
        self._closing = False
        self._lost = False
        incoming.receiver = self

    # What the other side of the wire does.

    def take(self, segment: _Segment) -> None:
        """A segment has arrived at the host; the process reads it when it runs."""
        process = self.process
        if process is not None and process.state is ProcessState.DEAD:
            if not (isinstance(segment, _End) and segment.reset):
                self._outgoing.send(_End(reset=True))
            return
        self._inbox.append(segment)
        self._soon(self._read)

    def connect(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection stands."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._read()

    def reset(self) -> None:
        """The connection is cut; both ends notice, and what is under way is lost from some point on."""
        self._outgoing.drop_some(self._network.rng)
        self._outgoing.send(_End(reset=True))

    # What runs in the process.

    def _soon(self, work: Callable[..., object], *args: Any) -> None:
        context = self.process.context if self.process is not None else Context()
        self._network.loop.call_soon(work, *args, context=context)

    def _read(self) -> None:
        while self._inbox and self._reading and not self._lost and self._protocol is not None:
            segment = self._inbox.popleft()
            if isinstance(segment, _Data):
                if not self._closing:
                    self._deliver(segment.content)
                self._incoming.bytes_unread -= len(segment.content)
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
        sender = self._network.other_end(self)
        if sender._paused and self._incoming.bytes_unread <= LOW_WATER_BYTES:
            sender._soon(sender._resume_writing)

    def _resume_writing(self) -> None:
        if self._paused and not self._lost and self._outgoing.bytes_unread <= LOW_WATER_BYTES:
            self._paused = False
            assert self._protocol is not None
            self._protocol.resume_writing()

    def _end(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._network.forget(self)
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    # asyncio.Transport.

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
        for piece in self._network.pieces(bytes(data)):
            self._outgoing.send(_Data(piece))
        if not self._paused and self._outgoing.bytes_unread > HIGH_WATER_BYTES and self._protocol is not None:
            self._paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._outgoing.bytes_unread if self._paused else 0

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._outgoing.send(_End(reset=False))
            self._soon(self._end, None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self.reset()
            self._soon(self._end, None)


class Network:
    """All hosts and what runs between them."""

    def __init__(self, loop: SimulatedLoop, rng: Random, weather: Weather) -> None:
        self.loop = loop
        self.rng = rng
        self.weather = weather
        self.on_arrival: Callable[[str], None] = lambda line: None
        """Told of each segment that arrives, in words that are the same in each replay."""
        self._down: dict[str, None] = {}
        self._cut: Counter[tuple[str, str]] = Counter()
        self._bound: dict[tuple[str, int], ListeningSocket] = {}
        self._by_number: dict[int, ListeningSocket] = {}
        self._connections: dict[Transport, Transport] = {}
        self._pipes: dict[_Pipe, None] = {}
        self._changed = asyncio.Event()
        self._port = _EPHEMERAL
        loop.network = self

    # What happens to it.

    def part(self, one_side: Collection[str], other_side: Collection[str], *, one_way: bool = False) -> None:
        """Let nothing pass from one set of hosts to the other, nor back unless ``one_way``; until as often joined."""
        for pair in _pairs(one_side, other_side, one_way):
            self._cut[pair] += 1

    def join(self, one_side: Collection[str], other_side: Collection[str], *, one_way: bool = False) -> None:
        """Undo one :meth:`part`."""
        for pair in _pairs(one_side, other_side, one_way):
            self._cut[pair] = max(0, self._cut[pair] - 1)
        self._free()

    def heal(self) -> None:
        """End all partitions."""
        self._cut.clear()
        self._free()

    def host_down(self, host: str) -> None:
        """The machine is gone, and nothing answers in its name."""
        self._down[host] = None

    def host_up(self, host: str) -> None:
        """The machine is back."""
        self._down.pop(host, None)
        self._free()

    def process_died(self, process: Process, *, silently: bool) -> None:
        """Its addresses are free, and unless ``silently`` its connections are reset."""
        for address in [address for address, each in self._bound.items() if each.process is process]:
            del self._bound[address]
        for transport in [each for each in self._connections if each.process is process]:
            if not silently:
                transport.reset()

    def cut_connections(self, one: str, other: str) -> int:
        """Reset the connections between two hosts; how many there were."""
        ends = [
            end
            for end in self._connections
            if end._outgoing.source == one and end._outgoing.target == other and not end._lost
        ]
        for end in ends:
            end.reset()
            self.other_end(end).reset()
        return len(ends)

    def _free(self) -> None:
        for pipe in tuple(self._pipes):
            if pipe.queue and self.reaches(pipe.source, pipe.target):
                pipe.again()
        self._changed.set()
        self._changed = asyncio.Event()

    # What it is like.

    def reaches(self, source: str, target: str) -> bool:
        """Whether what is sent arrives."""
        return not self._cut[source, target] and target not in self._down and source not in self._down

    def latency(self) -> float:
        """How long the next segment takes, in seconds."""
        weather = self.weather
        if self.rng.random() < weather.stall_chance:
            return self.rng.uniform(weather.latency_max, weather.stall_max)
        return self.rng.uniform(weather.latency_min, weather.latency_max)

    def retransmission(self) -> float:
        """How long after the way is free what waited is sent again, in seconds."""
        return self.rng.uniform(0.01, 1.0)

    def pieces(self, data: bytes) -> list[bytes]:
        """The pieces in which a write arrives."""
        if len(data) < 2 or self.rng.random() >= self.weather.cut_chance:
            return [data]
        cuts = sorted(self.rng.sample(range(1, len(data)), min(len(data) - 1, self.rng.randint(1, 3))))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def note(self, pipe: _Pipe, segment: _Segment) -> None:
        """Tell of an arrival."""
        if isinstance(segment, _Data):
            what = f"{len(segment.content)} {zlib.crc32(segment.content):08x}"
        else:
            what = "reset" if segment.reset else "end"
        self.on_arrival(f"{pipe.name} {what}")

    # What processes ask of it.

    def bind(self, host: str, port: int, *, send_buffer: int = -1, receive_buffer: int = -1) -> socket.socket:
        """As :func:`broker.network.listener.bind`; "" and 0.0.0.0 are the host of the process."""
        process = CURRENT.get()
        if process is not None and host in ("", "0.0.0.0", "::"):
            host = process.host
        if not port:
            port = self._next_port()
        if (host, port) in self._bound:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {host}:{port}: Address already in use")
        number = _FIRST_NUMBER + len(self._by_number)
        sock = self._bound[host, port] = self._by_number[number] = ListeningSocket(self, (host, port), number, process)
        return sock

    def unbind(self, sock: ListeningSocket) -> None:
        """Free an address, unless another has it by now."""
        if self._bound.get(sock.getsockname()) is sock:
            del self._bound[sock.getsockname()]

    def watch(self, number: int, reader: asyncio.Handle | None) -> bool:
        """Call ``reader`` while connections wait to be accepted; None ends that. False if nobody listens there."""
        sock = self._by_number.get(number)
        if sock is not None:
            sock.watch(reader)
        return sock is not None

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        """Connect from the host of the running process."""
        process = CURRENT.get()
        source = process.host if process is not None else "observer"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._travel(source, host)
                listening = self._bound.get((host, port))
                await self._travel(host, source)
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, f"Connect call failed {(host, port)}") from None
        if listening is None or not listening.listens or self._bound.get((host, port)) is not listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {(host, port)}")
        near, far = self._join(process, (source, self._next_port()), listening.process, (host, port))
        listening.arrived(far)
        protocol = protocol_factory()
        near.connect(protocol)
        return near, protocol

    def _join(
        self, process: Process | None, local: tuple[str, int], peer: Process | None, remote: tuple[str, int]
    ) -> tuple[Transport, Transport]:
        there = _Pipe(self, local[0], remote[0], f"{local[0]}:{local[1]} > {remote[0]}:{remote[1]}")
        back = _Pipe(self, remote[0], local[0], f"{remote[0]}:{remote[1]} > {local[0]}:{local[1]}")
        near = Transport(self, process, local, remote, incoming=back, outgoing=there)
        far = Transport(self, peer, remote, local, incoming=there, outgoing=back)
        self._connections[near], self._connections[far] = far, near
        self._pipes[there] = self._pipes[back] = None
        return near, far

    async def _travel(self, source: str, target: str) -> None:
        """Wait as long as one segment takes."""
        latency = self.latency()
        while not self.reaches(source, target):
            await self._changed.wait()
            latency = self.retransmission()
        await asyncio.sleep(latency)

    def other_end(self, end: Transport) -> Transport:
        """The peer of one end."""
        return self._connections[end]

    def forget(self, end: Transport) -> None:
        """Nobody uses this end any more; the connection is gone with both."""
        other = self._connections[end]
        if other._lost:
            for each in (end, other):
                self._connections.pop(each, None)
                self._pipes.pop(each._incoming, None)

    def _next_port(self) -> int:
        self._port = self._port + 1 if self._port < 65535 else _EPHEMERAL
        return self._port


def _pairs(one_side: Collection[str], other_side: Collection[str], one_way: bool) -> Iterator[tuple[str, str]]:
    for one in one_side:
        for other in other_side:
            yield one, other
            if not one_way:
                yield other, one
