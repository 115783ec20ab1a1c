"""Responses that clients do not read are bounded together; a client that reads slowly is not disconnected."""

from __future__ import annotations

import asyncio

import pytest

from parley.broker.network.connection import Connection
from parley.broker.network.listener import Listener
from parley.broker.network.unread_responses import CHECK_S, STALLED_S, UNREAD_BYTES_MAX, UnreadResponses
from parley.protocol.messages.groups import SyncGroupRequest, SyncGroupResponse
from parley.tools.simulation.virtual_time_loop import SimulatedLoop, run
from tests.broker.network.harness import RawClient, eventually, serving

REQUEST = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[])
LARGE = 12_000_000
"""More than the buffers of two sockets hold."""


class Holding:
    """A client's connection that holds ``size`` bytes. ``reads`` says if its client takes some of them."""

    def __init__(self, size: int, *, reads: bool = False) -> None:
        self.size = size
        self.reads = reads
        self.stalled_s = 0.0
        self.closed_after_s: float | None = None
        self._since = asyncio.get_running_loop().time()

    def count_unread(self, seconds: float) -> int:
        assert seconds == CHECK_S
        self.stalled_s = 0.0 if self.reads else self.stalled_s + seconds
        return 0 if self.closed_after_s is not None else self.size

    def close(self, reason: str = "") -> None:
        self.closed_after_s = asyncio.get_running_loop().time() - self._since


def closed_after_s(*holding: tuple[int, bool], seconds: float) -> list[float | None]:
    """Return when each of some connections, given by size and whether its client reads, is closed."""

    async def watch() -> list[float | None]:
        readers = [Holding(size, reads=reads) for size, reads in holding]
        unread = UnreadResponses()
        for reader in readers:
            unread.watch(reader)
        await asyncio.sleep(seconds)
        return [reader.closed_after_s for reader in readers]

    return run(SimulatedLoop(), watch())


def test_within_the_limit_stalled_clients_are_kept() -> None:
    assert closed_after_s((UNREAD_BYTES_MAX, False), seconds=1000) == [None]


def test_above_the_limit_the_stalled_clients_that_hold_most_are_closed() -> None:
    most, less, little = UNREAD_BYTES_MAX // 2, UNREAD_BYTES_MAX // 3, UNREAD_BYTES_MAX // 5
    closed = closed_after_s((less, False), (most, False), (little, False), seconds=1000)
    assert closed == [None, STALLED_S, None]


def test_clients_that_read_are_kept_however_much_they_hold() -> None:
    assert closed_after_s((10 * UNREAD_BYTES_MAX, True), seconds=1000) == [None]


def test_far_above_the_limit_stalled_clients_are_closed_sooner() -> None:
    closed = closed_after_s(*[(UNREAD_BYTES_MAX, False)] * 5, seconds=1000)
    assert sorted(closed, key=str) == [STALLED_S / 5] * 4 + [None]


async def blocked(listener: Listener) -> tuple[RawClient, Connection]:
    """Connect a client, and send it a large response that it does not read."""
    before = set(listener._connections)
    client = await RawClient.connect(listener)
    await client.send(REQUEST, 0)
    await eventually(lambda: len(listener._connections) > len(before))
    (connection,) = set(listener._connections) - before
    await eventually(lambda: connection._responses.sender.blocked)
    return client, connection


async def test_a_client_that_takes_nothing_is_closed_and_a_slow_one_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("parley.broker.network.unread_responses.UNREAD_BYTES_MAX", LARGE // 2)
    monkeypatch.setattr("parley.broker.network.unread_responses.CHECK_S", 3600.0)  # the test calls the checks
    monkeypatch.setattr("parley.broker.network.unread_responses.STALLED_S", 10 * 3600.0)
    answer = SyncGroupResponse(error_code=0, assignment=bytes(LARGE))
    async with serving({SyncGroupRequest.API_KEY: lambda context, request: answer}) as listener:
        stopped, stalled = await blocked(listener)
        slow, reading = await blocked(listener)
        while not stalled.is_closed:
            taken = reading._responses.acknowledged_bytes()
            while reading._responses.acknowledged_bytes() == taken:
                await slow.reader.read(10_000)
            listener.load.unread_responses._check()
        assert not reading.is_closed
        assert reading._responses.sender.blocked
        await stopped.close()
        await slow.close()
    (line,) = caplog.records
    assert line.__dict__["reason"] == "the client did not read its responses, and other clients need their memory"
