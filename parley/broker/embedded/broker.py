"""A broker inside a Python program: on a free port of this machine, with data that goes when the broker goes.

::

    async with Broker() as broker:                      # in the running event loop
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    with Broker(num_partitions=3) as broker:            # in a thread of its own
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

With a ``data_dir`` the data stays, and so does the embedded coordination store in it: the next broker on that directory
finds everything, be it embedded or ``parley start``.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from os import PathLike, fspath

from parley.broker.config import BrokerConfig
from parley.broker.config.presets import EMBEDDED
from parley.broker.embedded.reentrant_block import InBlock
from parley.broker.embedded.settings import Setting, given_settings, prepare_folders
from parley.broker.server import BrokerServer
from parley.consensus.registry import names_store


class Broker(InBlock):
    """One broker, running as long as its ``with`` or ``async with`` block; after that it can be entered again."""

    _thread_name = "parley"

    def __init__(
        self,
        properties: Mapping[str, Setting] | None = None,
        *,
        port: int = 0,
        data_dir: str | PathLike[str] | None = None,
        **settings: Setting,
    ) -> None:
        """``properties`` are those of ``server.properties``; ``settings`` are the same keys with underscores for dots.

        Port 0 takes any free one. Without a ``data_dir`` (or ``log.dirs``) data lies in a temporary folder. Raises
        ValueError for what makes no sense (``parley.broker.config.ConfigError`` for values that are not allowed),
        TypeError for a setting that does not exist.
        """
        super().__init__()
        self._given = given_settings(properties, settings)
        if port and "listeners" in self._given:
            raise ValueError("port and listeners both say where to listen: give one of them")
        if data_dir is not None:
            if self._given.keys() & {"log.dirs", "log.dir"}:
                raise ValueError("data_dir and log.dirs both say where the data lies: give one of them")
            self._given["log.dirs"] = os.path.abspath(fspath(data_dir))
        if port:
            self._given["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._server: BrokerServer | None = None
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

    @property
    def _keeps_data(self) -> bool:
        return bool(self._given.keys() & {"log.dirs", "log.dir"})

    def _config(self, temporary: str) -> BrokerConfig:
        """The configuration, with a folder for the data where none is named."""
        defaults = dict(EMBEDDED)
        if self._keeps_data or names_store(self._given):
            defaults.pop("coordination.url")
        if not self._keeps_data:
            defaults["log.dirs"] = temporary
        return BrokerConfig.from_properties({**defaults, **self._given})

    async def _start(self) -> None:
        if not self._keeps_data:
            self._temporary = tempfile.TemporaryDirectory(prefix="parley-")
        config = self._config("" if self._temporary is None else self._temporary.name)
        try:
            await asyncio.get_running_loop().run_in_executor(None, prepare_folders, config.data_dirs)
            self._server = BrokerServer(config)
            await self._server.start()
        except BaseException:
            self._forget()
            raise

    async def _end(self) -> None:
        try:
            await self.server.stop()
        finally:
            self._forget()

    def _forget(self) -> None:
        self._server = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
