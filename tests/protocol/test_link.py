"""One connection of a client: the order of its requests, in virtual time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

from parley.protocol.link import Address, Link
from parley.protocol.messages.metadata import MetadataRequest
from tests.support.virtual_time import run


class Written(asyncio.Transport):
    """A transport that records the topic names in the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        frame = b"".join(bytes(part) for part in list_of_data)
        self.names += [name.decode() for name in re.findall(rb"topic-\d", frame)]


def metadata_of(number: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=f"topic-{number}")])


def test_requests_that_wait_for_the_end_of_a_throttle_keep_their_order() -> None:
    async def throttled() -> list[str]:
        link, transport = Link(Address("localhost", 9092), "c", 1 << 20), Written()
        link.connection_made(transport)
        link._throttled_until = asyncio.get_running_loop().time() + 5

        async def ask_at_the_end() -> None:
            await asyncio.sleep(5)
            await link.ask(metadata_of(6), 12)

        asking = [asyncio.create_task(link.ask(metadata_of(number), 12)) for number in range(6)]
        asking.append(asyncio.create_task(ask_at_the_end()))
        await asyncio.sleep(4)
        assert not transport.names
        await asyncio.sleep(2)
        link.connection_lost(None)
        await asyncio.gather(*asking, return_exceptions=True)
        return transport.names

    assert run(throttled()) == [f"topic-{number}" for number in range(7)]


def test_a_request_that_is_given_up_lets_those_behind_it_pass() -> None:
    async def given_up() -> list[str]:
        link, transport = Link(Address("localhost", 9092), "c", 1 << 20), Written()
        link.connection_made(transport)
        link._throttled_until = asyncio.get_running_loop().time() + 5
        asking = [asyncio.create_task(link.ask(metadata_of(number), 12)) for number in range(4)]
        await asyncio.sleep(1)
        asking[0].cancel()
        asking[2].cancel()
        await asyncio.sleep(5)
        link.connection_lost(None)
        await asyncio.gather(*asking, return_exceptions=True)
        return transport.names

    assert run(given_up()) == ["topic-1", "topic-3"]
