"""A cluster inside a Python program: several brokers with one coordination store. docs/embedding.md has examples.

1. Brokers are identified by their ids, 1 to N. A broker keeps its id, its port and its folder while the cluster runs.
2. ``Cluster.kill`` ends a broker like a killed process: connections are cut, nothing is flushed, and no other broker is
   notified. The other brokers notice its refused connections, or the store expires its session.
3. ``Cluster.stop`` is a controlled shutdown: the broker first hands over its leadership.
4. In an ``async with`` block these methods must be awaited; in a plain ``with`` block they block until they are done.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import tempfile
from collections.abc import Awaitable, Coroutine, Mapping
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from parley.broker.config import BrokerConfig
from parley.broker.config.presets import EMBEDDED_CLUSTER, IN_ONE_LOOP, of_cluster
from parley.broker.embedded.reentrant_block import ReentrantBlock
from parley.broker.embedded.settings import Setting, given_settings, prepare_folders
from parley.broker.logging.unconfigured import print_if_unconfigured
from parley.broker.network.listener import bind
from parley.broker.server import BrokerServer
from parley.consensus.backend import Backend
from parley.consensus.registry import backend_factory, configured_url, names_store

_EACH_ITS_OWN: Final = ("broker.id", "node.id", "listeners", "advertised.listeners", "log.dirs", "log.dir")
_stores = itertools.count(1)


class ClusterBroker:
    """One broker of a cluster. It may be running or stopped."""

    def __init__(self, broker_id: int, settings: Mapping[str, str]) -> None:
        self.id = broker_id
        self.port = 0
        """The port on 127.0.0.1 that the broker listens on; 0 before its first start."""
        self._settings = dict(settings)
        self._server: BrokerServer | None = None
        self._kept: socket.socket | None = None
        """A socket that does not listen. Because of it, the system gives the port to no other program while the broker
        is stopped."""

    @property
    def is_running(self) -> bool:
        """True if the broker was started and has been neither stopped nor killed since."""
        return self._server is not None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of this broker. Stays the same while it is stopped; the port is 0 before its first start."""
        return f"127.0.0.1:{self.port}"

    @property
    def server(self) -> BrokerServer:
        """The running broker. Raises RuntimeError if it is not running.

        Call its methods only in the thread that runs the broker, unless they are documented as thread-safe.
        """
        if self._server is None:
            raise RuntimeError(f"broker {self.id} is not running")
        return self._server

    async def start(self) -> None:
        """Start the broker, at its previous address if it ran before.

        Raises RuntimeError if it is already running or if its data folder cannot be created or written to, and the
        errors of ``BrokerServer.start``.
        """
        if self._server is not None:
            raise RuntimeError(f"broker {self.id} is already running")
        if self._kept is None:
            self._kept = bind("127.0.0.1", 0)
            self._settings["listeners"] = f"PLAINTEXT://127.0.0.1:{self._kept.getsockname()[1]}"
        config = BrokerConfig.from_properties(self._settings)
        print_if_unconfigured(config)
        await asyncio.get_running_loop().run_in_executor(None, prepare_folders, config.data_dirs)
        server = self._server = BrokerServer(config)
        try:
            await server.start()
        except BaseException:
            self._server = None
            raise
        self.port = server.endpoints[0].port

    async def stop(self) -> None:
        """Stop the broker with a controlled shutdown. Does nothing if it is not running."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    async def kill(self) -> None:
        """Stop the broker as if its process were killed. Does nothing if it is not running."""
        server, self._server = self._server, None
        if server is not None:
            await server.kill()

    def give_up_port(self) -> None:
        """Release the port, so that other programs can use it. Do not start the broker again after that."""
        if self._kept is not None:
            self._kept.close()


class Cluster(ReentrantBlock):
    """Several brokers that run while the ``with`` or ``async with`` block is active. The block can be entered again."""

    _thread_name = "parley-cluster"

    def __init__(
        self,
        properties: Mapping[str, Setting] | None = None,
        *,
        brokers: int = 3,
        data_dir: str | PathLike[str] | None = None,
        **settings: Setting,
    ) -> None:
        """``properties`` and ``settings`` apply to every broker, as for ``parley.Broker``.

        Without a ``data_dir`` the data is in a temporary folder and the store in memory. With a ``data_dir``, each
        broker and the embedded store have a folder in it. ``coordination.url`` selects another store. Raises ValueError
        for invalid values and for settings that the cluster makes itself, and TypeError for unknown settings.
        """
        super().__init__()
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: a cluster has at least 1 broker")
        self._given = given_settings(properties, settings)
        own = [key for key in _EACH_ITS_OWN if key in self._given]
        if own:
            raise ValueError(f"{', '.join(own)}: remove this setting; the cluster sets it for each broker")
        self._count = brokers
        self._data_dir = None if data_dir is None else os.path.abspath(fspath(data_dir))
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._brokers: dict[int, ClusterBroker] = {}
        self._store: Backend | None = None
        for broker_id in self._ids:
            BrokerConfig.from_properties(self._settings(broker_id, Path("unused"), "memory:"))

    @property
    def _ids(self) -> range:
        return range(1, self._count + 1)

    @property
    def brokers(self) -> Mapping[int, ClusterBroker]:
        """All brokers by id, including those that are not running. Empty outside the block."""
        return MappingProxyType(self._brokers)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for the configuration of clients. Raises RuntimeError outside the block."""
        if not self._brokers:
            raise RuntimeError("the cluster runs only inside its with block")
        return ",".join(broker.bootstrap_servers for broker in self._brokers.values())

    def kill(self, broker_id: int) -> Awaitable[None]:
        """Kill a broker: cut its connections, flush nothing, and notify no other broker. Does nothing if the broker is
        not running.

        Await the result in an ``async with`` block; in a ``with`` block, this call blocks until the broker has ended.
        Raises ValueError if the cluster has no broker with this id.
        """
        return self._do(self._broker(broker_id).kill())

    def stop(self, broker_id: int) -> Awaitable[None]:
        """Stop a broker with a controlled shutdown. Does nothing if the broker is not running.

        Await the result in an ``async with`` block; in a ``with`` block, this call blocks until the broker has stopped.
        Raises ValueError if the cluster has no broker with this id.
        """
        return self._do(self._broker(broker_id).stop())

    def restart(self, broker_id: int) -> Awaitable[None]:
        """Start a broker again with its id, port and data. A running broker is first stopped with a controlled
        shutdown.

        Await the result in an ``async with`` block; in a ``with`` block, this call blocks until the broker has started.
        Raises ValueError if the cluster has no broker with this id, and the errors of ``ClusterBroker.start``.
        """
        return self._do(self._restart(self._broker(broker_id)))

    def _broker(self, broker_id: int) -> ClusterBroker:
        broker = self._brokers.get(broker_id)
        if broker is None:
            ids = ", ".join(map(str, self._brokers)) or "unknown outside its with block"
            raise ValueError(f"there is no broker {broker_id} in this cluster; the ids are {ids}")
        return broker

    async def _restart(self, broker: ClusterBroker) -> None:
        await broker.stop()
        await broker.start()

    def _do(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        if self._thread is None:
            return asyncio.ensure_future(work)
        self._thread.do(work)
        return _Done()

    # --- Start and stop ---

    async def _start(self) -> None:
        if self._data_dir is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="parley-")
        folder = Path(self._data_dir or self._temporary.name)  # type: ignore[union-attr]
        store = f"local://{folder / 'coordination'}" if self._data_dir else f"memory://cluster-{next(_stores)}"
        self._brokers = {each: ClusterBroker(each, self._settings(each, folder, store)) for each in self._ids}
        # An in-memory store is deleted with its last reference. Keep a reference while no broker is running.
        settings = self._settings(1, folder, store)
        self._store = await backend_factory(settings)(configured_url(settings, folder))
        try:
            await asyncio.gather(*(broker.start() for broker in self._brokers.values()))
        except BaseException:
            await self._end()
            raise

    async def _end(self) -> None:
        try:
            for broker in reversed(self._brokers.values()):
                await broker.stop()
        finally:
            for broker in self._brokers.values():
                broker.give_up_port()
            self._brokers = {}
            self._store = None
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    def _settings(self, broker_id: int, folder: Path, store: str) -> dict[str, str]:
        """Return all settings of one broker. Only the first broker runs the console."""
        given = {key: text for key, text in self._given.items() if key != "console.listener" or broker_id == 1}
        defaults = {**EMBEDDED_CLUSTER, **of_cluster(self._count), **(IN_ONE_LOOP if self._data_dir is None else {})}
        if not names_store(self._given):
            defaults["coordination.url"] = store
        own = {"broker.id": str(broker_id), "log.dirs": str(folder / f"broker-{broker_id}")}
        return {**defaults, **given, **own}


class _Done:
    """An awaitable for work that has already been done."""

    def __await__(self) -> Any:
        return
        yield
