"""From an address to a backend.

The scheme of the URL names the backend. Built-in ones are found here; any other by an entry point of that name in the
group ``parley.coordination``, which names a subclass of ``Backend``::

    [project.entry-points."parley.coordination"]
    postgresql = "parley_postgresql:PostgresqlBackend"
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from urllib.parse import urlencode

from parley.consensus.backend import Backend
from parley.consensus.errors import BadConfig

GROUP = "parley.coordination"

# Known without reading the metadata of every installed distribution, which costs more than opening a store.
_BUILT_IN = {
    "consul": "parley.consensus.consul:ConsulBackend",
    "etcd": "parley.consensus.etcd:EtcdBackend",
    "local": "parley.consensus.local:LocalBackend",
    "memory": "parley.consensus.memory:MemoryBackend",
    "zookeeper": "parley.consensus.zookeeper:ZookeeperBackend",
}

_ZOOKEEPER_OPTIONS = {
    "zookeeper.set.acl": "acl",
    "zookeeper.connection.timeout.ms": "connect-timeout-ms",
    "zookeeper.ssl.client.enable": "tls",
    "zookeeper.ssl.truststore.location": "ca-file",
}
_ZOOKEEPER_SECRETS = {
    "zookeeper.ssl.keystore.password": "key_password",
    "zookeeper.ssl.truststore.password": "ca_password",
}


def schemes() -> tuple[str, ...]:
    """The schemes that can be opened on this installation, sorted."""
    return tuple(sorted(_BUILT_IN.keys() | _third_party().keys()))


def create_backend(url: str, **options: object) -> Backend:
    """The backend for an address, not yet connected: ``await backend.open()``, or use it in ``async with``.

    :param options: passed on to the backend's ``from_url``.
    :raises BadConfig: no such scheme (the message names the known ones), or the backend refuses the address.
    """
    scheme, separator, _ = url.partition(":")
    if not separator:
        raise BadConfig(f"{url!r} is not an address; it starts with one of {_known()}")
    return backend_class(scheme).from_url(url, **options)


BackendFactory = Callable[[str], Awaitable[Backend]]
"""From an address to a backend, not yet open."""


def backend_factory(config: Mapping[str, str]) -> BackendFactory:
    """What opens addresses for a broker of this configuration, with the secrets that no address may hold.

    Those are the passwords of ``zookeeper.ssl.*``, which go with every ``zookeeper:`` address.
    """
    secrets = zookeeper_secrets(config)

    async def backend_at(url: str) -> Backend:
        return await load_backend(url, **(secrets if url.startswith("zookeeper:") else {}))

    return backend_at


def zookeeper_secrets(config: Mapping[str, str]) -> dict[str, str]:
    """The passwords of ``zookeeper.ssl.*`` as options beside an address."""
    return {name: config[key] for key, name in _ZOOKEEPER_SECRETS.items() if config.get(key)}


async def load_backend(url: str, **options: object) -> Backend:
    """As ``create_backend``, for whoever has other work on this loop: client libraries are imported in a thread.

    Importing one can take seconds on a busy machine, longer than a session may stay silent.
    """
    scheme, separator, _ = url.partition(":")
    if separator:
        await asyncio.get_running_loop().run_in_executor(None, backend_class, scheme)
    return create_backend(url, **options)


def backend_class(scheme: str) -> type[Backend]:
    """The class of a scheme.

    :raises BadConfig: no such scheme, its module cannot be imported, or it is not a ``Backend``.
    """
    target = _BUILT_IN.get(scheme) or _third_party().get(scheme)
    if target is None:
        raise BadConfig(f"no coordination store is known as {scheme!r}; known are {_known()}")
    module, _, name = target.partition(":")
    try:
        found: object = import_module(module)
        for attribute in name.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        missing = scheme in _BUILT_IN and isinstance(error, ModuleNotFoundError)
        install = f"; `pip install 'parley-broker[{scheme}]'` brings what it needs" if missing else ""
        raise BadConfig(f"the coordination store {scheme!r} ({target}) cannot be loaded: {error}{install}") from error
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise BadConfig(f"the coordination store {scheme!r} ({target}) is not a parley.consensus.backend.Backend")
    return found


def default_url(data_dir: str | PathLike[str]) -> str:
    """The address of the embedded store kept below a data directory."""
    return f"local://{Path(fspath(data_dir)).absolute() / 'coordination'}"


def from_kafka_config(config: Mapping[str, str], data_dir: str | PathLike[str] | None = None) -> str:
    """The address that a broker's configuration asks for.

    ``coordination.url`` as it stands; else ``zookeeper.connect`` (``h1:2181,h2:2181/chroot``) as a ``zookeeper:``
    address, with what else Kafka's keys say of ZooKeeper; else the embedded store below ``data_dir``, or without one
    below the first of ``log.dirs``, ``log.dir``.

    :raises BadConfig: ``zookeeper.connect`` is malformed, or nothing says where to keep the embedded store.
    """
    if url := config.get("coordination.url", "").strip():
        return url
    if connect := config.get("zookeeper.connect", "").strip():
        return f"{_zookeeper_url(connect)}{_zookeeper_options(config)}"
    if data_dir is None:
        dirs = config.get("log.dirs") or config.get("log.dir") or ""
        data_dir = dirs.split(",")[0].strip() or None
    if data_dir is None:
        raise BadConfig("set coordination.url, zookeeper.connect, or log.dirs for the embedded store")
    return default_url(data_dir)


def names_store(config: Mapping[str, str]) -> bool:
    """Whether a broker's configuration says itself where the store is, so that no default is to be put in its place."""
    return any(config.get(key, "").strip() for key in ("coordination.url", "zookeeper.connect"))


def _zookeeper_url(connect: str) -> str:
    hosts, slash, chroot = connect.partition("/")
    addresses = [host.strip() for host in hosts.split(",")]
    chroot = chroot.rstrip("/")
    if not all(addresses) or "//" in f"/{chroot}":
        raise BadConfig(f"zookeeper.connect={connect!r}: expected host:port[,host:port...][/chroot]")
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if colon and not address.endswith("]") and not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise BadConfig(f"zookeeper.connect={connect!r}: {address!r} is not host:port")
    return f"zookeeper://{','.join(addresses)}{slash if chroot else ''}{chroot}"


def _zookeeper_options(config: Mapping[str, str]) -> str:
    """Kafka's keys as options of the address; no secret is among them."""
    options = {name: config[key] for key, name in _ZOOKEEPER_OPTIONS.items() if config.get(key)}
    if "connect-timeout-ms" not in options and (session_ms := config.get("zookeeper.session.timeout.ms")):
        options["connect-timeout-ms"] = session_ms
    if options.get("tls", "true").lower() == "true":
        if keystore := config.get("zookeeper.ssl.keystore.location"):
            options |= {"cert-file": keystore, "key-file": keystore}
        if config.get("zookeeper.ssl.endpoint.identification.algorithm", "HTTPS") == "" and "tls" in options:
            options["verify-host"] = "false"
    else:
        options.pop("ca-file", None)
    for key in ("zookeeper.ssl.keystore.type", "zookeeper.ssl.truststore.type"):
        if config.get(key, "PEM").upper() not in ("PEM", "PKCS12", "JKS"):  # JKS is what many call their PKCS #12
            raise BadConfig(f"{key}={config[key]}: only PEM and PKCS12 can be read")
    return f"?{urlencode(options, safe='/:')}" if options else ""


def _third_party() -> dict[str, str]:
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    return {point.name: point.value for point in entry_points(group=GROUP)}


def _known() -> str:
    return ", ".join(f"{scheme}:" for scheme in schemes())
