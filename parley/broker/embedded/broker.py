"""A broker inside a Python program: on a free local port, with temporary data. docs/embedding.md has examples.

``async with Broker() as broker`` runs it in the current event loop, ``with Broker() as broker`` in a separate thread.
With a ``data_dir`` the data is kept, including the embedded coordination store: the next broker in that directory,
embedded or started with ``parley start``, finds it again.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from os import PathLike, fspath

from parley.broker.config import BrokerConfig
from parley.broker.config.presets import EMBEDDED
from parley.broker.embedded.reentrant_block import ReentrantBlock
from parley.broker.embedded.settings import Setting, given_settings, prepare_folders
from parley.broker.logging.unconfigured import print_if_unconfigured
from parley.broker.server import BrokerServer
from parley.consensus.registry import names_store


class Broker(ReentrantBlock):
    """A broker that runs while its ``with`` or ``async with`` block is active. The block can be entered again."""

    _thread_name = "parley"

    def __init__(
        self,
        properties: Mapping[str, Setting] | None = None,
        *,
        port: int = 0,
        data_dir: str | PathLike[str] | None = None,
        **settings: Setting,
    ) -> None:
        """``properties`` contains keys of ``server.properties``; ``settings`` are the same keys with underscores
        instead of dots.

        With port 0 the broker takes any free port. Without a ``data_dir`` (or ``log.dirs``) the data is in a temporary
        folder. Raises ValueError if settings contradict each other, ``parley.broker.config.ConfigError`` (a ValueError)
        for invalid values, and TypeError for unknown settings.
        """
        super().__init__()
        self._given = given_settings(properties, settings)
        if port and "listeners" in self._given:
            raise ValueError("port and listeners both set the address: use only one of them")
        if data_dir is not None:
            if self._given.keys() & {"log.dirs", "log.dir"}:
                raise ValueError("data_dir and log.dirs both set the data directory: use only one of them")
            self._given["log.dirs"] = os.path.abspath(fspath(data_dir))
        if port:
            self._given["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._server: BrokerServer | None = None
        self._config("unused")

    @property
    def server(self) -> BrokerServer:
        """The running broker. Raises RuntimeError outside the block.

        Call its methods only in the thread that runs the broker, unless they are documented as thread-safe.
        """
        if self._server is None:
            raise RuntimeError("the broker runs only inside its with block")
        return self._server

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, for the configuration of clients. Raises RuntimeError outside the block."""
        return self.server.bootstrap_servers

    @property
    def port(self) -> int:
        """The port that the broker listens on. Raises RuntimeError outside the block."""
        return self.server.endpoints[0].port

    @property
    def _keeps_data(self) -> bool:
        return bool(self._given.keys() & {"log.dirs", "log.dir"})

    def _config(self, temporary: str) -> BrokerConfig:
        """Return the configuration. ``temporary`` is the data folder if the user has not specified one."""
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
        print_if_unconfigured(config)
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
