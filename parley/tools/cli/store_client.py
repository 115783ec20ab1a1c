"""Run a command's work on a coordination store: resolve its address, open it, and report errors that say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from parley.tools.cli.invocation import CommandError, silence_store_clients

if TYPE_CHECKING:
    from parley.consensus.backend import Backend
    from parley.consensus.registry import BackendFactory

T = TypeVar("T")

OPEN_MAX_S = 30.0
STORE_REFUSED = "The store refused access"
"""The start of the error of a command whose credentials the store rejects."""


def store_address(url: str | None, config: Path | None) -> tuple[str, BackendFactory]:
    """Return the URL of the store that the arguments name, and the factory that opens it. Raises ``CommandError``
    unless exactly one is given, or if the file cannot be read or names no store."""
    from parley.configuration.providers import read_configuration
    from parley.consensus.errors import BadConfig
    from parley.consensus.registry import backend_factory, configured_url

    if url is None and config is None:
        raise CommandError(
            "Name a store by its URL, or a broker's properties file with --config. The store of `parley start` without "
            f"a file, started in this folder, is {_embedded_store()}"
        )
    if url is not None and config is not None:
        raise CommandError("Name a store by its URL, or a broker's properties file with --config, not both.")
    if config is None:
        return url or "", backend_factory({})
    try:
        properties = read_configuration(config)
        return configured_url(properties), backend_factory(properties)
    except OSError as error:
        raise CommandError(f"The file {config} cannot be read: {error.strerror}.") from error
    except (ValueError, BadConfig) as error:
        raise CommandError(f"{config}: {error}.") from error


def _embedded_store() -> str:
    """Return the URL of the store that ``parley start`` creates in the current folder without a file."""
    from parley.broker.config.presets import COMMAND

    return f"local://{Path(COMMAND['log.dirs']).absolute()}/coordination"


async def in_store(url: str, backend_at: BackendFactory, work: Callable[[Backend], Awaitable[T]]) -> T:
    """Open a store, run ``work`` with it, and close it. An empty store stays empty. Call it through ``run_on_store``,
    which turns the errors of the store into ``CommandError``."""
    from parley.consensus.store_move.store_lookup import open_existing

    async with asyncio.timeout(OPEN_MAX_S):
        backend = await open_existing(url, backend_at)
    try:
        return await work(backend)
    finally:
        await backend.close()


def run_on_store(work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work`` in an event loop, and return its result. Turns errors of the store, and a TimeoutError, into
    ``CommandError``."""

    async def run() -> T:
        return await work()

    silence_store_clients()
    with _explained():
        return asyncio.run(run())


@contextmanager
def _explained() -> Iterator[None]:
    from parley.consensus.errors import CoordinationError, Unauthorized, WrongStore

    try:
        yield
    except WrongStore as error:
        raise CommandError(f"The store does not belong to a Parley cluster: {error}.") from error
    except Unauthorized as error:
        raise CommandError(
            f"{STORE_REFUSED}: {error}. See docs/stores.md for the permissions that a broker needs."
        ) from error
    except CoordinationError as error:
        raise CommandError(f"{error or type(error).__name__}.") from error
    except TimeoutError as error:
        raise CommandError(f"The store did not respond within {OPEN_MAX_S:g} s.") from error
