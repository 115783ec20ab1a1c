"""Everything arrives in order, from memory and from files, however slowly the client reads."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from parley.broker.network.sending import FileSlice, Part, SliceLost, SocketSender, TransportSender
from tests.broker.network.harness import eventually
from tests.support.descriptors import open_descriptors

CONTENT = random.Random(1).randbytes(3_000_000)


@pytest.fixture
def file(tmp_path: Path) -> int:
    path = tmp_path / "log"
    path.write_bytes(CONTENT)
    return os.open(path, os.O_RDONLY)


def mixture(file: int) -> tuple[list[list[Part]], bytes]:
    """Return the parts of several responses, and the bytes that they hold."""
    rng = random.Random(2)
    answers: list[list[Part]] = []
    expected = bytearray()
    for _ in range(30):
        answer: list[Part] = []
        for _ in range(rng.randrange(1, 6)):
            if rng.random() < 0.4:
                position, size = rng.randrange(1_000_000), rng.choice([1, 100, 20_000, 500_000])
                answer.append(FileSlice(file, position, size, None))
                expected += CONTENT[position : position + size]
            else:
                data = rng.randbytes(rng.choice([1, 70, 4000, 40_000]))
                answer.append(rng.choice([bytes, bytearray, memoryview])(data))
                expected += data
        answers.append(answer)
    return answers, bytes(expected)


async def read_slowly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    received = bytearray()
    while len(received) < size:
        data = await loop.sock_recv(sock, 70_000)
        if not data:
            break
        received += data
    return bytes(received)


class End(asyncio.Protocol):
    """The broker's end of a connection, whose transport forwards its pauses to the sender."""

    sender: SocketSender

    def __init__(self) -> None:
        self.broken: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.drained = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        plain = transport.get_extra_info("socket")
        own = socket.socket(plain.family, plain.type, plain.proto, fileno=plain.fileno())
        own.setblocking(False)
        loop = asyncio.get_running_loop()
        self.sender = SocketSender(self.transport, own, loop, self.on_drained, self.broken.set_result)

    def on_drained(self) -> None:
        self.drained += 1

    def pause_writing(self) -> None:
        self.sender.pause()

    def resume_writing(self) -> None:
        self.sender.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self.sender.close()
        self.lost.set_result(exc)


async def pair() -> tuple[End, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, end = await asyncio.get_running_loop().connect_accepted_socket(End, ours)
    return end, theirs


async def test_a_socket_gets_everything_in_order(file: int) -> None:
    end, theirs = await pair()
    sender = end.sender
    answers, expected = mixture(file)
    for answer in answers:
        sender.send(answer)
    assert sender.blocked
    assert sender.held_bytes + sender.sent_bytes == len(expected)
    in_files = sum(len(part) for part in sender._held if isinstance(part, FileSlice))
    assert 0 < sender.memory_bytes <= sender.held_bytes - in_files + sender._offset
    assert await read_slowly(theirs, len(expected)) == expected
    await eventually(lambda: not sender.blocked)
    assert end.drained == 1
    assert (sender.held_bytes, sender.sent_bytes) == (0, len(expected))
    sender.send([b"last"])
    assert await read_slowly(theirs, 4) == b"last"
    end.transport.close()
    assert await read_slowly(theirs, 1) == b""
    sender.close()
    theirs.close()


async def test_a_socket_costs_one_descriptor(file: int) -> None:
    end, theirs = await pair()
    own = os.readlink(f"/proc/self/fd/{end.transport.get_extra_info('socket').fileno()}")
    end.sender.send([FileSlice(file, 0, len(CONTENT), None)])
    assert end.sender.blocked
    assert open_descriptors(own) == 1
    end.transport.abort()
    await end.lost
    theirs.close()
    assert open_descriptors(own) == 0


async def test_a_file_that_became_shorter_breaks_the_connection(file: int) -> None:
    end, theirs = await pair()
    with pytest.raises(SliceLost):
        end.sender.send([b"head", FileSlice(file, len(CONTENT) - 10, 11, None)])
    end.transport.abort()
    await end.lost
    theirs.close()


async def test_a_client_that_disconnects_is_noticed_while_the_sender_is_blocked(file: int) -> None:
    end, theirs = await pair()
    end.sender.send([FileSlice(file, 0, len(CONTENT), None)])
    assert end.sender.blocked
    theirs.close()
    ends: set[asyncio.Future[Any]] = {end.lost, end.broken}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    end.transport.abort()
    await end.lost
    assert end.sender.held_bytes == 0


class RecordingTransport(asyncio.WriteTransport):
    """Takes a bounded number of bytes before it asks for a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.room = 0
        self.on_full: Callable[[], None] = lambda: None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        self.room -= len(data)
        if self.room <= 0:
            self.on_full()


async def test_a_transport_is_given_no_more_than_it_asks_for(file: int) -> None:
    transport = RecordingTransport()
    drained: list[int] = []
    sender = TransportSender(transport, lambda: drained.append(len(transport.written)))
    transport.on_full = sender.pause
    transport.room = 1_500_000
    answers, expected = mixture(file)
    for answer in answers:
        sender.send(answer)
    assert sender.blocked
    rounds = 0
    while sender.blocked:
        assert len(transport.written) <= 1_500_000 * (rounds + 1) + (1 << 20)
        rounds += 1
        transport.room = 1_500_000
        sender.resume()
    assert transport.written == expected
    assert drained == [len(expected)]
    with pytest.raises(SliceLost):
        sender.send([FileSlice(file, len(CONTENT), 1, None)])
    sender.close()


def test_a_slice_knows_whether_it_is_in_memory(file: int) -> None:
    part = FileSlice(file, 100, 2_000_000, None)
    part.load()
    assert part.is_cached()
    assert part.read(5, 10) == CONTENT[105:115]
    assert len(part.read(1_999_990, 1000)) == 10
