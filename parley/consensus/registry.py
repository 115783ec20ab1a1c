"""Finds the backend for an address, and the configuration keys of the stores.

The scheme of an address names the backend. Parley's own backends are listed in ``built_in_stores``. Any other backend
needs an entry point with the name of the scheme in the group ``parley.coordination``, which names a subclass of
``Backend``::

    [project.entry-points."parley.coordination"]
    postgresql = "parley_postgresql:PostgresqlBackend"
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path

from parley.configuration.extras import how_to_install
from parley.consensus import built_in_stores as built_in
from parley.consensus.backend import Backend
from parley.consensus.errors import BadConfig
from parley.consensus.store_config import StoreConfig

GROUP = "parley.coordination"


# --- Backends ---


def schemes() -> tuple[str, ...]:
    """Return the schemes that this installation can open, sorted."""
    return tuple(sorted(built_in.BACKENDS.keys() | _third_party().keys()))


def create_backend(url: str, **options: object) -> Backend:
    """Return the backend for an address. It is not open yet: call ``open``, or use it in ``async with``.

    The options are passed on to the backend's ``from_url``. Raises BadConfig if the scheme is unknown (the message
    names the known ones), or if the backend rejects the address.
    """
    return backend_class(_scheme(url)).from_url(url, **options)


def backend_class(scheme: str) -> type[Backend]:
    """Return the backend class of a scheme.

    Raises BadConfig if the scheme is unknown, if its module cannot be imported, or if it does not name a ``Backend``.
    """
    target = built_in.BACKENDS.get(scheme) or _third_party().get(scheme)
    if target is None:
        raise BadConfig(f"unknown coordination store {scheme!r}; available: {_known()}")
    module, _, name = target.partition(":")
    try:
        found: object = import_module(module)
        for attribute in name.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        missing = scheme in built_in.BACKENDS and isinstance(error, ModuleNotFoundError)
        install = f"; install its library: {how_to_install(scheme)}" if missing else ""
        raise BadConfig(f"the coordination store {scheme!r} ({target}) cannot be loaded: {error}{install}") from error
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise BadConfig(
            f"the coordination store {scheme!r}: {target} is not a subclass of parley.consensus.backend.Backend"
        )
    return found


BackendFactory = Callable[[str], Awaitable[Backend]]
"""Returns the backend for an address, not yet open."""


def backend_factory(config: Mapping[str, str]) -> BackendFactory:
    """Return the function that creates backends for a broker with this configuration.

    The function passes options such as passwords from the configuration to the backend. It imports client libraries in
    a thread, because an import on the event loop can last longer than a session may remain unrenewed. It raises
    BadConfig, like ``create_backend``.
    """

    async def backend_at(url: str) -> Backend:
        found = await asyncio.get_running_loop().run_in_executor(None, backend_class, _scheme(url))
        return found.from_url(url, **found.config.options(config))

    return backend_at


# --- Configuration ---


def third_party_config(scheme: str) -> StoreConfig | None:
    """Return the configuration keys of a store from another package, or None if there is no such store.

    Imports that package. Raises BadConfig if the package cannot be loaded, or if a key does not begin with the scheme.
    """
    if scheme in built_in.BACKENDS or scheme not in _third_party():
        return None
    config = backend_class(scheme).config
    for key in config.keys:
        if not key.name.startswith(f"{scheme}."):
            raise BadConfig(
                f"the coordination store {scheme!r} declares the key {key.name}; it must begin with {scheme}."
            )
    return config


def configured_url(config: Mapping[str, str], data_dir: str | PathLike[str] | None = None) -> str:
    """Return the address of the store that a broker's configuration names.

    That is ``coordination.url``; otherwise the address in the keys of a built-in store, such as ``zookeeper.connect``;
    otherwise the embedded store below ``data_dir``, by default the first directory of ``log.dirs``.

    Raises BadConfig if such a key is malformed, or if no key specifies where to keep the embedded store.
    """
    if url := config.get("coordination.url", "").strip():
        return url
    for store in built_in.CONFIGS.values():
        if store.address is not None and config.get(store.address_key, "").strip():
            return store.address(config)
    if data_dir is None:
        dirs = config.get("log.dirs") or config.get("log.dir") or ""
        data_dir = dirs.split(",")[0].strip() or None
    if data_dir is None:
        keys = ", ".join(["coordination.url", *_address_keys()])
        raise BadConfig(f"set {keys}, or log.dirs for the embedded store")
    return default_url(data_dir)


def names_store(config: Mapping[str, str]) -> bool:
    """Return True if a broker's configuration names its store. Otherwise the broker uses the embedded store."""
    return any(config.get(key, "").strip() for key in ("coordination.url", *_address_keys()))


def default_url(data_dir: str | PathLike[str]) -> str:
    """Return the address of the embedded store below a data directory."""
    return f"local://{Path(fspath(data_dir)).absolute() / 'coordination'}"


def _address_keys() -> list[str]:
    return [store.address_key for store in built_in.CONFIGS.values() if store.address_key]


# --- Schemes ---


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition(":")
    if not separator:
        raise BadConfig(f"{url!r} is not the address of a store: an address starts with one of {_known()}")
    return scheme


def _third_party() -> Mapping[str, str]:
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    return {point.name: point.value for point in entry_points(group=GROUP)}


def _known() -> str:
    return ", ".join(f"{scheme}:" for scheme in schemes())
