"""A network in memory whose connections are slow, cut, refused or silent, as the seed decides.

* A connection is two pipes. The data of a pipe arrive in order, later, and in other pieces. Pipes have no common order.
* Segments between partitioned hosts, or to a host that is down, wait like TCP's retransmissions: they arrive some time
  after the hosts can reach each other again. Neither side is notified, so a partition is silence and never a refusal.
* A process that dies resets its connections. A machine that dies does not; once it is back, it resets connections
  that it no longer knows when something is sent to them.
* A connection to a host that is up, but does not listen on that port, is refused.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from random import Random

from parley.tools.simulation.connections import Data, ListeningSocket, Pipe, Segment, Transport
from parley.tools.simulation.processes import CURRENT, Process
from parley.tools.simulation.virtual_time_loop import SimulatedLoop

CONNECT_TIMEOUT_S = 127.0
"""When Linux gives up connecting, with its default of six retransmissions."""
_EPHEMERAL = 32768
_FIRST_NUMBER = 1 << 24
"""The first number of simulated sockets: beyond any real file descriptor."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How the network behaves. Times are in seconds, probabilities per segment."""

    latency_min: float = 0.0001
    latency_max: float = 0.002
    stall_chance: float = 0.001
    stall_max: float = 0.2
    """How long a stalled segment takes, like one that had to be retransmitted."""
    cut_chance: float = 0.3
    """The probability that a write is cut into pieces that arrive one by one."""

    @classmethod
    def drawn(cls, rng: Random) -> Weather:
        """Draw a behaviour: a fast network more often than a slow one."""
        slowest = rng.choice((0.001, 0.002, 0.005, 0.02))
        return cls(
            slowest / 20, slowest, rng.choice((0.0, 0.001, 0.01)), rng.choice((0.05, 0.3)), rng.choice((0.05, 0.5))
        )


class Network:
    """All hosts, and the connections between them."""

    def __init__(self, loop: SimulatedLoop, rng: Random, weather: Weather) -> None:
        self.loop = loop
        self.rng = rng
        self.weather = weather
        self.on_arrival: Callable[[str], None] = lambda line: None
        """Called for each segment that arrives, with a description that is the same in each replay."""
        self._down: dict[str, None] = {}
        self._cut: Counter[tuple[str, str]] = Counter()
        self._bound: dict[tuple[str, int], ListeningSocket] = {}
        self._by_number: dict[int, ListeningSocket] = {}
        self._connections: dict[Transport, Transport] = {}
        self._pipes: dict[Pipe, None] = {}
        self._changed = asyncio.Event()
        self._port = _EPHEMERAL
        loop.network = self

    # --- Faults ---

    def part(self, one_side: Collection[str], other_side: Collection[str], *, one_way: bool = False) -> None:
        """Cut one set of hosts off from the other, also backwards unless ``one_way``. Each call needs one ``join``."""
        for pair in _pairs(one_side, other_side, one_way):
            self._cut[pair] += 1

    def join(self, one_side: Collection[str], other_side: Collection[str], *, one_way: bool = False) -> None:
        """Undo one ``part``."""
        for pair in _pairs(one_side, other_side, one_way):
            self._cut[pair] = max(0, self._cut[pair] - 1)
        self._free()

    def heal(self) -> None:
        """End all partitions."""
        self._cut.clear()
        self._free()

    def host_down(self, host: str) -> None:
        """Take a machine down: it neither sends nor receives."""
        self._down[host] = None

    def host_up(self, host: str) -> None:
        """Bring a machine back up."""
        self._down.pop(host, None)
        self._free()

    def process_died(self, process: Process, *, silently: bool) -> None:
        """Free the addresses of a dead process and, unless ``silently``, reset its connections."""
        for address in [address for address, each in self._bound.items() if each.process is process]:
            del self._bound[address]
        for transport in [each for each in self._connections if each.process is process]:
            if not silently:
                transport.reset()

    def cut_connections(self, one: str, other: str) -> int:
        """Reset the connections between two hosts. Returns how many there were."""
        ends = [
            end
            for end in self._connections
            if end.outgoing.source == one and end.outgoing.target == other and not end.lost
        ]
        for end in ends:
            end.reset()
            self.other_end(end).reset()
        return len(ends)

    def _free(self) -> None:
        for pipe in tuple(self._pipes):
            if pipe.queue and self.reaches(pipe.source, pipe.target):
                pipe.retransmit()
        self._changed.set()
        self._changed = asyncio.Event()

    # --- Behaviour ---

    def reaches(self, source: str, target: str) -> bool:
        """True if segments from one host reach the other."""
        return not self._cut[source, target] and target not in self._down and source not in self._down

    def latency(self) -> float:
        """The seconds that the next segment takes."""
        weather = self.weather
        if self.rng.random() < weather.stall_chance:
            return self.rng.uniform(weather.latency_max, weather.stall_max)
        return self.rng.uniform(weather.latency_min, weather.latency_max)

    def retransmission(self) -> float:
        """The seconds until a waiting segment is retransmitted after the hosts can reach each other again."""
        return self.rng.uniform(0.01, 1.0)

    def pieces(self, data: bytes) -> list[bytes]:
        """The pieces in which a write arrives."""
        if len(data) < 2 or self.rng.random() >= self.weather.cut_chance:
            return [data]
        cuts = sorted(self.rng.sample(range(1, len(data)), min(len(data) - 1, self.rng.randint(1, 3))))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def note(self, pipe: Pipe, segment: Segment) -> None:
        """Report the arrival of a segment."""
        if isinstance(segment, Data):
            what = f"{len(segment.content)} {zlib.crc32(segment.content):08x}"
        else:
            what = "reset" if segment.reset else "end"
        self.on_arrival(f"{pipe.name} {what}")

    # --- For processes ---

    def bind(self, host: str, port: int, *, send_buffer: int = -1, receive_buffer: int = -1) -> socket.socket:
        """See ``parley.broker.network.listener.bind``. "" and 0.0.0.0 mean the host of the process."""
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
        """Free the address of a socket, unless another socket has it by now."""
        if self._bound.get(sock.getsockname()) is sock:
            del self._bound[sock.getsockname()]

    def watch(self, number: int, reader: asyncio.Handle | None) -> bool:
        """Call ``reader`` while connections wait to be accepted; None ends that. False if there is no such socket."""
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
        there = Pipe(self, local[0], remote[0], f"{local[0]}:{local[1]} > {remote[0]}:{remote[1]}")
        back = Pipe(self, remote[0], local[0], f"{remote[0]}:{remote[1]} > {local[0]}:{local[1]}")
        near = Transport(self, process, local, remote, incoming=back, outgoing=there)
        far = Transport(self, peer, remote, local, incoming=there, outgoing=back)
        self._connections[near], self._connections[far] = far, near
        self._pipes[there] = self._pipes[back] = None
        return near, far

    async def _travel(self, source: str, target: str) -> None:
        """Wait for the time that one segment takes."""
        latency = self.latency()
        while not self.reaches(source, target):
            await self._changed.wait()
            latency = self.retransmission()
        await asyncio.sleep(latency)

    def other_end(self, end: Transport) -> Transport:
        """The other end of a connection."""
        return self._connections[end]

    def forget(self, end: Transport) -> None:
        """Note that this end is closed. The connection is removed when both are."""
        other = self._connections[end]
        if other.lost:
            for each in (end, other):
                self._connections.pop(each, None)
                self._pipes.pop(each.incoming, None)

    def _next_port(self) -> int:
        self._port = self._port + 1 if self._port < 65535 else _EPHEMERAL
        return self._port


def _pairs(one_side: Collection[str], other_side: Collection[str], one_way: bool) -> Iterator[tuple[str, str]]:
    for one in one_side:
        for other in other_side:
            yield one, other
            if not one_way:
                yield other, one
