"""A TCP proxy in a thread of its own, for tests of what clients and brokers do when the network fails between them.

::

    with FaultProxy("127.0.0.1", 9092) as link:     # brokers or clients connect to link.port instead
        link.cut()                                  # nothing passes any more, and nobody is told
        link.restore()
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from parley.broker.embedded.loop_thread import LoopThread
from parley.consensus.conformance.proxy import Proxy, Tap


class FaultProxy:
    """Passes on what comes to ``port`` of this machine, until it is told otherwise."""

    def __init__(self, host: str, port: int, make_tap: Callable[[], Tap] = Tap) -> None:
        """``make_tap()`` makes what sees the bytes of a connection, and may change or lose them."""
        self._target = (host, port)
        self._make_tap = make_tap
        self._proxy: Proxy | None = None
        self._thread = LoopThread("fault-proxy", self._begin, self._end)

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return self._inner.port

    @property
    def _inner(self) -> Proxy:
        if self._proxy is None:
            raise RuntimeError("the proxy runs only inside its with block")
        return self._proxy

    def cut(self) -> None:
        """Let nothing through, either way, and tell nobody: as when a cable is pulled."""
        self._thread.do(self._call(self._inner.cut))

    def restore(self) -> None:
        """End :meth:`cut`; connections of before are broken."""
        self._thread.do(self._call(self._inner.restore))

    def break_all(self) -> None:
        """Reset all connections; new ones are let in."""
        self._thread.do(self._call(self._inner.break_all))

    async def _call(self, what: object) -> None:
        assert callable(what)
        what()

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
