"""A TCP proxy in its own thread, for tests of clients and brokers whose network fails.

::

    with FaultProxy("127.0.0.1", 9092) as link:     # brokers or clients connect to link.port instead
        link.cut()                                  # no data passes; connections stay open
        link.restore()
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from parley.broker.embedded.loop_thread import LoopThread
from parley.consensus.conformance.proxy import Proxy, Tap


class FaultProxy:
    """A proxy that forwards connections from ``port`` of this machine to a server, and injects network faults on
    request. It runs only inside its ``with`` block; outside it, the methods raise RuntimeError."""

    def __init__(self, host: str, port: int, make_tap: Callable[[], Tap] = Tap) -> None:
        """Create a proxy for the server at this address; entering the context starts it. ``make_tap()`` returns the
        ``Tap`` of a new connection, which sees its bytes and may change or drop them."""
        self._target = (host, port)
        self._make_tap = make_tap
        self._proxy: Proxy | None = None
        self._thread = LoopThread("fault-proxy", self._begin, self._end)

    @property
    def port(self) -> int:
        """The port on 127.0.0.1 that the proxy listens on. Raises RuntimeError outside the context."""
        return self._inner.port

    @property
    def _inner(self) -> Proxy:
        if self._proxy is None:
            raise RuntimeError("the proxy runs only inside its with block")
        return self._proxy

    def cut(self) -> None:
        """Drop all data in both directions without closing a connection, as if a cable had been pulled."""
        self._thread.do(self._call(self._inner.cut))

    def restore(self) -> None:
        """End ``cut``. Connections that were open during the cut are closed, because data is missing from them."""
        self._thread.do(self._call(self._inner.restore))

    def break_all(self) -> None:
        """Reset all connections. New ones are accepted."""
        self._thread.do(self._call(self._inner.break_all))

    async def _call(self, fault: Callable[[], None]) -> None:
        fault()

    async def _begin(self) -> None:
        self._proxy = Proxy(*self._target, self._make_tap)

    async def _end(self) -> None:
        if self._proxy is not None:
            await self._proxy.close()
            self._proxy = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.stop()
