"""``python -m bench.copies``: the ways in which a broker can send bytes of a file to a socket, as CPU time per GB.

One process sends a file over loopback to another process, in pieces of the sizes that fetch responses have. The
figures are the sender's CPU seconds per GB, which include the kernel's work for both sides of the connection. They are
the least that a broker in any language pays for a fetch response on this machine. A ``cold`` file is not in the page
cache, so the sender also pays for reading the disk.

The kernel copies the bytes of ``MSG_ZEROCOPY`` on loopback, because the receiver may leave them unread for any time
(https://docs.kernel.org/networking/msg_zerocopy.html, section "Loopback"). So that way cannot win here.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import struct
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from bench.figures import OURS, Figures, Found, report

SO_ZEROCOPY = 60
MSG_ZEROCOPY = 0x4000000
_COMPLETION = struct.Struct("=IBBBBII")
"""``struct sock_extended_err``: the range of completed sends is in its last two fields."""
BUFFERS = 16
"""The number of pieces that may be on the way with MSG_ZEROCOPY: the kernel reads a buffer until it reports its end."""
PIECES = {"64 KiB": 65_536, "1 MiB": 1_048_576}

Way = Callable[[int, socket.socket, int, int], None]
"""Sends a file of a size in pieces: file descriptor, socket, size, bytes of a piece."""


def by_sendfile(file: int, peer: socket.socket, size: int, piece: int) -> None:
    at = 0
    while at < size:
        at += os.sendfile(peer.fileno(), file, at, min(piece, size - at))


def by_read(file: int, peer: socket.socket, size: int, piece: int) -> None:
    buffer = bytearray(piece)
    view = memoryview(buffer)
    at = 0
    while at < size:
        count = os.preadv(file, [buffer], at)
        peer.sendall(view[:count])
        at += count


def by_splice(file: int, peer: socket.socket, size: int, piece: int) -> None:
    receiving, sending = os.pipe()
    try:
        at = 0
        while at < size:
            count = os.splice(file, sending, min(piece, size - at), offset_src=at)
            at += count
            while count:
                count -= os.splice(receiving, peer.fileno(), count)
    finally:
        os.close(receiving)
        os.close(sending)


def by_zerocopy(file: int, peer: socket.socket, size: int, piece: int) -> None:
    peer.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    completions = Completions(peer)
    views = [memoryview(bytearray(piece)) for _ in range(BUFFERS)]
    at = sends = number = 0
    ends = [0] * BUFFERS  # of each buffer: how many sends must have completed before it may be filled again
    while at < size:
        number = (number + 1) % BUFFERS
        completions.wait(ends[number])
        count = os.preadv(file, [views[number]], at)
        sent = 0
        while sent < count:
            sent += peer.send(views[number][sent:count], MSG_ZEROCOPY)
            sends += 1
        ends[number] = sends
        at += count
    completions.wait(sends)


class Completions:
    """How many sends with MSG_ZEROCOPY have completed: the kernel no longer reads their buffers."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._count = 0
        self._poll = select.poll()
        self._poll.register(peer, 0)  # poll always reports errors, and with them completions

    def wait(self, count: int) -> None:
        """Wait until at least ``count`` sends have completed."""
        while self._count < count:
            self._poll.poll()
            _, ancillary, _, _ = self._peer.recvmsg(0, 128, socket.MSG_ERRQUEUE)
            self._count = max([self._count, *(_COMPLETION.unpack_from(data)[-1] + 1 for _, _, data in ancillary)])


def from_memory(file: int, peer: socket.socket, size: int, piece: int) -> None:
    data = os.pread(file, piece, 0)
    for at in range(0, size, piece):
        peer.sendall(data[: size - at])


WAYS: dict[str, Way] = {
    "bytes that are in memory": from_memory,
    "sendfile": by_sendfile,
    "splice through a pipe": by_splice,
    "preadv and send": by_read,
    "preadv and send with MSG_ZEROCOPY": by_zerocopy,
}


def receive(listener: socket.socket, size: int) -> None:
    """Accept connections, and read ``size`` bytes from each."""
    buffer = bytearray(PIECES["1 MiB"])
    while True:
        peer, _ = listener.accept()
        with peer:
            left = size
            while left and (count := peer.recv_into(buffer)):
                left -= count
            peer.sendall(b"x")


def measure(way: Way, path: Path, port: int, piece: int, *, cold: bool) -> float:
    """Send the file. Returns the CPU seconds of this process per GB."""
    size = path.stat().st_size
    file = os.open(path, os.O_RDONLY)
    try:
        if cold:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        with socket.create_connection(("127.0.0.1", port)) as peer:
            before = time.process_time()
            way(file, peer, size, piece)
            used = time.process_time() - before
            peer.recv(1)
        return used / (size / 1e9)
    finally:
        os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.copies", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    options = parser.parse_args()
    found: Figures = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="parley-bench-") as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        path = Path(folder) / "log"
        with path.open("wb") as output:
            while output.tell() < options.bytes:
                output.write(os.urandom(min(PIECES["1 MiB"], options.bytes - output.tell())))
            os.fsync(output.fileno())
        receiver = get_context("fork").Process(target=receive, args=(listener, options.bytes), daemon=True)
        receiver.start()
        port = listener.getsockname()[1]
        for _ in range(options.rounds):
            for cold in (False, True):
                for name, piece in PIECES.items():
                    for label, way in WAYS.items():
                        if cold and way is from_memory:
                            continue
                        heading = f"{label}, {'cold, ' if cold else ''}pieces of {name}: CPU s/GB"
                        found[heading, OURS].append(measure(way, path, port, piece, cold=cold))
                        print(heading, found[heading, OURS][-1], file=sys.stderr, flush=True)
        receiver.kill()
    report(Found(found))


if __name__ == "__main__":
    main()
