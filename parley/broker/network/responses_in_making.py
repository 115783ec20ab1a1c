"""Responses to divided requests while they are made: what all of them together may hold of the broker's memory.

A response of many parts grows for seconds, and hundreds of clients may ask for one at the same time. Below
``MAKING_BYTES_MAX`` all of them are made in turn. Above, only one part is made at a time, so that some responses are
completed, and their memory is free, before the others grow. Parts of the response with the fewest parts left and of
the oldest one are made alternately: small requests pass large ones, and large ones do not starve.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

MAKING_BYTES_MAX: Final = 32 << 20
"""Encoded bytes of the responses in the making, over all connections. In memory they are about twice as large."""
FIRST_PART_BYTES: Final = 1 << 20
"""Bytes reserved for the first part of a response, whose size is not known yet. The next ones are taken to be as large
as the last one was."""


@dataclass(eq=False, slots=True)
class ResponseInMaking:
    """A response of several parts. ``number`` is higher the later its request came."""

    number: int
    parts_left: int
    made_bytes: int = 0
    reserved_bytes: int = 0
    next_bytes: int = field(default=FIRST_PART_BYTES)


class ResponsesInMaking:
    """Bounds the bytes of responses in the making: to ``bytes_max`` and the rest of two responses."""

    def __init__(self, bytes_max: int = MAKING_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[ResponseInMaking, asyncio.Future[None]] = {}
        self._beyond: ResponseInMaking | None = None  # its part is made above the limit
        self._oldest_next = False
        self._numbers = 0
        self.bytes_held = 0
        """Bytes of the parts that are made, and reserved for those that are being made."""

    def begin(self, parts: int) -> ResponseInMaking:
        """Return a new response of ``parts`` parts. The caller calls ``end`` in the end."""
        self._numbers += 1
        return ResponseInMaking(self._numbers, parts)

    async def begin_part(self, response: ResponseInMaking) -> None:
        """Wait until the next part of the response may be made. The caller calls ``part_made`` next, or ``end``."""
        if self._has_room(response):
            self._reserve(response)
            return
        self._waiting[response] = admitted = asyncio.get_running_loop().create_future()
        try:
            self._admit()
            await admitted
        finally:
            self._waiting.pop(response, None)

    def part_made(self, response: ResponseInMaking, size: int) -> None:
        """Count a part that is made."""
        self._release(response, response.reserved_bytes - size)
        response.made_bytes += size
        response.reserved_bytes = 0
        response.next_bytes = size
        response.parts_left -= 1
        self._admit()

    def end(self, response: ResponseInMaking) -> None:
        """Count the response out: it is complete, or given up."""
        self._release(response, response.made_bytes + response.reserved_bytes)
        self._admit()

    def _has_room(self, response: ResponseInMaking) -> bool:
        return self.bytes_held + response.next_bytes <= self._bytes_max

    def _reserve(self, response: ResponseInMaking) -> None:
        response.reserved_bytes = response.next_bytes
        self.bytes_held += response.next_bytes

    def _release(self, response: ResponseInMaking, size: int) -> None:
        self.bytes_held -= size
        if self._beyond is response:
            self._beyond = None

    def _admit(self) -> None:
        """Let the waiting responses proceed for which there is room, the oldest ones first, or one of them without
        room."""
        for response in sorted(self._waiting, key=lambda each: each.number):
            if not self._has_room(response):
                break
            self._proceed(response)
        if self._waiting and self._beyond is None:
            self._beyond = self._chosen()
            self._proceed(self._beyond)

    def _chosen(self) -> ResponseInMaking:
        self._oldest_next = not self._oldest_next
        if self._oldest_next:
            return min(self._waiting, key=lambda each: (each.parts_left, each.number))
        return min(self._waiting, key=lambda each: each.number)

    def _proceed(self, response: ResponseInMaking) -> None:
        self._reserve(response)
        admitted = self._waiting.pop(response)
        if not admitted.done():  # else its task is cancelled, and ends it
            admitted.set_result(None)
