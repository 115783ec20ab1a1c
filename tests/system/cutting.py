"""Cut one broker off from the network: packets from it and to it are lost, and no connection is closed.

All brokers of a test are on one machine, and each is reached through its proxy. A proxy drops the traffic of a broker
that is cut off. It recognizes the sending broker by the client id of the first request on a connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from parley.consensus.conformance.proxy import Tap

_CLIENT_ID_AT = 14
"""The offset of the client id in a frame: after the size, the API key and version, the correlation id, and
its length."""
_BROKER = re.compile(rb"broker-([0-9]{1,9})")


class Cuts:
    """The brokers that are currently cut off, for the proxies in front of all brokers."""

    def __init__(self) -> None:
        self.cut_off: set[int] = set()

    def tap(self, number: int) -> Callable[[], Tap]:
        """Return a tap for the proxy in front of a broker."""
        return partial(_CutTap, self.cut_off, number)


class _CutTap(Tap):
    def __init__(self, cut_off: set[int], number: int) -> None:
        self._cut_off = cut_off
        self._server = number
        self._client: int | None = None  # a broker, or none, or not known yet
        self._is_known = False
        self._has_lost = False

    def to_server(self, data: bytes) -> bytes | None:
        if not self._is_known:
            self._is_known = True
            found = _BROKER.match(data, _CLIENT_ID_AT)
            self._client = int(found[1]) if found else None
        return self._passed_on(data)

    def to_client(self, data: bytes) -> bytes | None:
        return self._passed_on(data)

    def _passed_on(self, data: bytes) -> bytes | None:
        if self._server in self._cut_off or self._client in self._cut_off:
            self._has_lost = True
            return b""
        return None if self._has_lost else data  # what follows would be the middle of something
