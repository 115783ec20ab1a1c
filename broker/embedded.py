"""A broker inside a Python program: on a free port of this machine, with data that goes when the broker goes.

::

    async with Broker() as broker:                      # in the running event loop
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    with Broker(num_partitions=3) as broker:            # in a thread of its own
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

With a ``data_dir`` the data stays, and so does the embedded coordination store in it: the next broker on that directory
finds everything.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from os import PathLike, fspath
from threading import Thread
from types import TracebackType
from typing import Self

import uvloop

from broker.config import BrokerConfig
from broker.server import BrokerServer

DEFAULTS: Mapping[str, str] = {
    "broker.id": "1",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""Where an embedded broker differs from the defaults of the configuration: it is alone, and nobody likes to wait."""


class Broker:
    """One broker, running as long as its ``with`` or ``async with`` block."""

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        data_dir: str | PathLike[str] | None = None,
        **settings: object,
    ) -> None:
        """``properties`` are those of ``server.properties``; ``settings`` are the same keys with underscores for dots.

        Port 0 takes any free one. Raises ConfigError for properties that are wrong, TypeError for a setting that does
        not exist.
        """
        self._given = {**(properties or {}), **_as_properties(settings)}
        self._port = port
        self._data_dir = None if data_dir is None else fspath(data_dir)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._server: BrokerServer | None = None
        self._thread: Thread | None = None
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._config("unused")

    @property
    def server(self) -> BrokerServer:
        """The broker itself. From a thread other than its own use only what says that it may be."""
        if self._server is None:
            raise RuntimeError("the broker runs only inside its with block")
        return self._server

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, as every client's configuration wants it."""
        return self.server.bootstrap_servers

    def _config(self, data_dir: str) -> BrokerConfig:
        return BrokerConfig.from_properties(
            {
                **DEFAULTS,
                "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
                "log.dirs": data_dir,
                **({"coordination.url": "memory:"} if self._data_dir is None else {}),
                **self._given,
            }
        )

    async def __aenter__(self) -> Self:
        if self._data_dir is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="parley-")
        self._server = BrokerServer(self._config(self._data_dir or self._temporary.name))  # type: ignore[union-attr]
        try:
            await self._server.start()
        except BaseException:
            self._forget()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.stop()
        self._forget()

    def _forget(self) -> None:
        self._server = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    # In a thread.

    def __enter__(self) -> Self:
        started: Future[None] = Future()
        self._thread = Thread(target=self._run, args=(started,), name="parley", daemon=True)
        self._thread.start()
        started.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._thread is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    def _run(self, started: Future[None]) -> None:
        try:
            uvloop.run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop.clear()
        async with self:
            started.set_result(None)
            await self._stop.wait()


def _as_properties(settings: Mapping[str, object]) -> dict[str, str]:
    names = {key.attribute: name for name, key in BrokerConfig.KEYS.items()}
    unknown = settings.keys() - names.keys()
    if unknown:
        raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
    return {names[attribute]: _as_text(value) for attribute, value in settings.items()}


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(_as_text, value))
    return str(value)
