"""Limits the memory of responses to divided requests while they are being built, over all connections.

A response of many parts grows for seconds, and hundreds of clients may request such a response at the same time. Below
``UNFINISHED_BYTES_MAX``, all responses are built in turn. Above it, only one part is built at a time, so that some
responses are completed and free their memory before the others grow. The response with the fewest parts left and the
oldest response take turns building a part: small responses overtake large ones, but large ones do not starve.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import Final

from parley.light_dataclasses import dataclass

UNFINISHED_BYTES_MAX: Final = 32 << 20
"""The maximum number of encoded bytes of responses being built, over all connections. In memory they take about twice
as much."""
FIRST_PART_BYTES: Final = 1 << 20
"""The number of bytes reserved for the first part of a response, whose size is unknown. Each later part is assumed to
be as large as the previous one."""


@dataclass(eq=False, slots=True)
class UnfinishedResponse:
    """A response of several parts that is being built. A later request has a higher ``number``.

    ``made_bytes`` is the size of the finished parts, ``reserved_bytes`` what is reserved for the part that is being
    built, and ``next_bytes`` the assumed size of the next part.
    """

    number: int
    parts_left: int
    made_bytes: int = 0
    reserved_bytes: int = 0
    next_bytes: int = field(default=FIRST_PART_BYTES)


class UnfinishedResponses:
    """Limits the bytes of responses being built to ``bytes_max``, plus the remaining parts of two responses."""

    def __init__(self, bytes_max: int = UNFINISHED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[UnfinishedResponse, asyncio.Future[None]] = {}
        self._beyond: UnfinishedResponse | None = None  # the response that may build a part above the limit
        self._oldest_next = False
        self._numbers = 0
        self.bytes_held = 0
        """The bytes of finished parts, and the bytes reserved for parts that are being built."""

    def begin(self, parts: int) -> UnfinishedResponse:
        """Return a new response of ``parts`` parts. The caller must call ``end`` when it is complete or abandoned."""
        self._numbers += 1
        return UnfinishedResponse(self._numbers, parts)

    async def begin_part(self, response: UnfinishedResponse) -> None:
        """Wait until the next part of the response may be built. The caller must then call ``part_made`` or ``end``."""
        if self._has_room(response):
            self._reserve(response)
            return
        self._waiting[response] = admitted = asyncio.get_running_loop().create_future()
        try:
            self._admit()
            await admitted
        finally:
            self._waiting.pop(response, None)

    def part_made(self, response: UnfinishedResponse, size: int) -> None:
        """Record that a part of ``size`` bytes is finished."""
        self._release(response, response.reserved_bytes - size)
        response.made_bytes += size
        response.reserved_bytes = 0
        response.next_bytes = size
        response.parts_left -= 1
        self._admit()

    def end(self, response: UnfinishedResponse) -> None:
        """Release the memory of a response that is complete or abandoned."""
        self._release(response, response.made_bytes + response.reserved_bytes)
        self._admit()

    def _has_room(self, response: UnfinishedResponse) -> bool:
        return self.bytes_held + response.next_bytes <= self._bytes_max

    def _reserve(self, response: UnfinishedResponse) -> None:
        response.reserved_bytes = response.next_bytes
        self.bytes_held += response.next_bytes

    def _release(self, response: UnfinishedResponse, size: int) -> None:
        self.bytes_held -= size
        if self._beyond is response:
            self._beyond = None

    def _admit(self) -> None:
        """Admit the waiting responses for which there is room, oldest first. If there is no room, admit one of them."""
        for response in sorted(self._waiting, key=lambda each: each.number):
            if not self._has_room(response):
                break
            self._proceed(response)
        if self._waiting and self._beyond is None:
            self._beyond = self._chosen()
            self._proceed(self._beyond)

    def _chosen(self) -> UnfinishedResponse:
        self._oldest_next = not self._oldest_next
        if self._oldest_next:
            return min(self._waiting, key=lambda each: (each.parts_left, each.number))
        return min(self._waiting, key=lambda each: each.number)

    def _proceed(self, response: UnfinishedResponse) -> None:
        self._reserve(response)
        admitted = self._waiting.pop(response)
        if not admitted.done():  # else its task was cancelled and ends the response
            admitted.set_result(None)
