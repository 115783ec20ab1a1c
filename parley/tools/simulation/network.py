"""An in-memory network whose connections are slow, cut, refused or silent, as the seed decides.

* A connection is two pipes. The data of a pipe arrives in order, later, and in different pieces. There is no order
  between the two pipes.
* Partitions and machines that are down delay segments (``links``).
* A process that dies resets its connections. A machine that dies does not; once it is back, it resets connections that
  it no longer knows when something is sent to them.
* A connection to a host that is up, but does not listen on that port, is refused.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from parley.tools.simulation.connections import ListeningSocket, Pipe, Transport
from parley.tools.simulation.links import Links
from parley.tools.simulation.processes import CURRENT, Process

CONNECT_TIMEOUT_S = 127.0
"""The time after which Linux gives up connecting, with its default of six retransmissions."""
_EPHEMERAL = 32768
_FIRST_NUMBER = 1 << 24
"""The first number of simulated sockets, higher than any real file descriptor."""


class Network:
    """The addresses that processes listen on, and the connections between them."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._bound: dict[tuple[str, int], ListeningSocket] = {}
        self._by_number: dict[int, ListeningSocket] = {}
        self._ends: dict[Transport, None] = {}
        self._port = _EPHEMERAL

    # --- Faults ---

    def process_died(self, process: Process, *, silently: bool) -> None:
        """Free the addresses of a dead process and, unless ``silently``, reset its connections."""
        for address in [address for address, each in self._bound.items() if each.process is process]:
            del self._bound[address]
        for transport in [each for each in self._ends if each.process is process]:
            if not silently:
                transport.reset()

    def cut_connections(self, one: str, other: str) -> int:
        """Reset the connections between two hosts. Returns how many there were."""
        ends = [
            end for end in self._ends if end.outgoing.source == one and end.outgoing.target == other and not end.lost
        ]
        for end in ends:
            end.reset()
            end.other_end.reset()
        return len(ends)

    # --- For processes ---

    def bind(self, host: str, port: int, *, send_buffer: int = -1, receive_buffer: int = -1) -> socket.socket:
        """Return a simulated listening socket. Replaces ``parley.broker.network.listener.bind``.

        The addresses "", 0.0.0.0 and :: mean the host of the process, and port 0 the next free port. The sizes of the
        buffers have no effect. Raises OSError (EADDRINUSE) if the address is in use.
        """
        process = CURRENT.get()
        if process is not None and host in ("", "0.0.0.0", "::"):
            host = process.host
        if not port:
            port = self._next_port()
        if (host, port) in self._bound:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {host}:{port}: Address already in use")
        number = _FIRST_NUMBER + len(self._by_number)
        sock = self._bound[host, port] = self._by_number[number] = ListeningSocket(
            self._links.loop, (host, port), number, process, on_close=self._unbind
        )
        return sock

    def _unbind(self, sock: ListeningSocket) -> None:
        """Free the address of a socket, unless another socket took it in the meantime."""
        if self._bound.get(sock.getsockname()) is sock:
            del self._bound[sock.getsockname()]

    def watch(self, number: int, reader: asyncio.Handle | None) -> bool:
        """Call ``reader`` while connections wait to be accepted. None removes the callback. Returns False if the socket
        is unknown."""
        sock = self._by_number.get(number)
        if sock is not None:
            sock.watch(reader)
        return sock is not None

    async def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        """Connect from the host of the running process to a listening socket. Raises OSError (ETIMEDOUT or
        ECONNREFUSED) if that fails."""
        process = CURRENT.get()
        source = process.host if process is not None else "observer"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._links.travel(source, host)
                listening = self._bound.get((host, port))
                await self._links.travel(host, source)
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
        links = self._links
        there = Pipe(links, local[0], remote[0], f"{local[0]}:{local[1]} > {remote[0]}:{remote[1]}")
        back = Pipe(links, remote[0], local[0], f"{remote[0]}:{remote[1]} > {local[0]}:{local[1]}")
        near = Transport(links, process, local, remote, incoming=back, outgoing=there, on_lost=self._lost)
        far = Transport(links, peer, remote, local, incoming=there, outgoing=back, on_lost=self._lost)
        self._ends[near] = self._ends[far] = None
        return near, far

    def _lost(self, end: Transport) -> None:
        """Remove the connection if its other end is closed too."""
        if end.other_end.lost:
            for each in (end, end.other_end):
                self._ends.pop(each, None)
                each.incoming.forget()

    def _next_port(self) -> int:
        self._port = self._port + 1 if self._port < 65535 else _EPHEMERAL
        return self._port
