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
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from os import PathLike, fspath
from threading import Thread
from types import TracebackType
from typing import Self

import uvloop

from broker.config import BrokerConfig
from broker.config.definition import closest, value_text
from broker.config.presets import EMBEDDED
from broker.server import BrokerServer

Setting = str | int | float | bool | PathLike[str] | list[str] | tuple[str, ...]
"""What a value may be: as in a properties file, or as one would write it in Python."""


class Broker:
    """One broker, running as long as its ``with`` or ``async with`` block; after that it can be entered again."""

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
        ValueError for what makes no sense (``broker.config.ConfigError`` for values that are not allowed), TypeError
        for a setting that does not exist.
        """
        self._given = {**_from_properties(properties), **_from_settings(settings)}
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
        self._thread: Thread | None = None
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._entered = False
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
        if self._keeps_data or "zookeeper.connect" in self._given:
            defaults.pop("coordination.url")
        if not self._keeps_data:
            defaults["log.dirs"] = temporary
        return BrokerConfig.from_properties({**defaults, **self._given})

    def _claim(self) -> None:
        if self._entered:
            raise RuntimeError("this Broker is running already: make another Broker() for a second one")
        self._entered = True

    async def __aenter__(self) -> Self:
        self._claim()
        try:
            await self._start()
        except BaseException:
            self._entered = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._end()
        finally:
            self._entered = False

    async def _start(self) -> None:
        if not self._keeps_data:
            self._temporary = tempfile.TemporaryDirectory(prefix="parley-")
        config = self._config("" if self._temporary is None else self._temporary.name)
        try:
            await asyncio.get_running_loop().run_in_executor(None, _prepare, config.data_dirs)
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

    # In a thread.

    def __enter__(self) -> Self:
        self._claim()
        started: Future[None] = Future()
        self._thread = Thread(target=self._run, args=(started,), name="parley", daemon=True)
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._entered = False
            raise
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
        self._entered = False

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
        await self._start()
        try:
            started.set_result(None)
            await self._stop.wait()
        finally:
            await self._end()


def _prepare(directories: tuple[str, ...]) -> None:
    """Make the folders. A broker lives on with the others when one fails, but the first has the embedded store too."""
    first = directories[0]
    try:
        os.makedirs(first, exist_ok=True)
        with tempfile.TemporaryFile(dir=first):
            pass
    except OSError as error:
        raise RuntimeError(
            f"the data folder {first} cannot be written ({error.strerror or error}): correct its rights, or name "
            "another one as data_dir"
        ) from error


def _from_properties(properties: Mapping[str, Setting] | None) -> dict[str, str]:
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise ValueError(
            f"properties is a mapping of keys to values, not {properties!r}; "
            "for a file give broker.config.read_properties(path)"
        )
    for name in properties:
        if not isinstance(name, str):
            raise ValueError(f'the key {name!r} is no text: write it as in server.properties, like "num.partitions"')
    return {name: _as_text(name, value) for name, value in properties.items()}


def _from_settings(settings: Mapping[str, Setting]) -> dict[str, str]:
    names = {key.attribute: name for name, key in BrokerConfig.KEYS.items()}
    unknown = sorted(settings.keys() - names.keys())
    if unknown:
        raise TypeError("; ".join(_unknown(name, names) for name in unknown))
    return {names[attribute]: _as_text(attribute, value) for attribute, value in settings.items()}


def _unknown(name: str, names: Mapping[str, str]) -> str:
    meant = closest(name, names)
    return f"no such setting: {name}" + (f"; is {meant} meant?" if meant else "")


def _as_text(name: str, value: object) -> str:
    if value is None:
        raise ValueError(f"{name}=None says nothing: leave {name} out to have its default")
    return ",".join(_texts(name, value))


def _texts(name: str, value: object) -> Iterator[str]:
    match value:
        case str() | bool() | int() | float():
            yield value_text(value)
        case PathLike() if isinstance(path := fspath(value), str):
            yield path
        case list() | tuple():
            for element in value:
                yield from _texts(name, element)
        case _:
            raise ValueError(
                f"{name}={value!r} is of {type(value)}: give a text, a number, True or False, or a list of texts"
            )
