"""All real stores that tests can use, by URL scheme. A store's dependencies are imported when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from tests.support.stores.servers import Servers


def _consul() -> AbstractContextManager[Servers]:
    from tests.support.stores.consul import consul_servers

    return consul_servers()


def _etcd() -> AbstractContextManager[Servers]:
    from tests.support.stores.etcd import etcd_servers

    return etcd_servers()


def _zookeeper() -> AbstractContextManager[Servers]:
    from tests.support.stores.zookeeper import zookeeper_servers

    return zookeeper_servers()


SERVERS: dict[str, Callable[[], AbstractContextManager[Servers]]] = {
    "consul": _consul,
    "etcd": _etcd,
    "zookeeper": _zookeeper,
}
"""The function that starts a server, by scheme."""


@contextmanager
def _address(start: Callable[[], AbstractContextManager[Servers]]) -> Iterator[str]:
    with start() as servers:
        yield servers.url


STORES: dict[str, Callable[[], AbstractContextManager[str]]] = {
    scheme: partial(_address, start) for scheme, start in SERVERS.items()
}
"""The function that starts a server and yields its URL, by scheme. ``below`` returns the URL of a folder in
the store."""


def below(url: str, folder: str) -> str:
    """Return the URL of a folder in the store at ``url``, which may contain options after a ``?``."""
    address, *more = url.split("?", 1)
    return "?".join([f"{address}/{folder}", *more])
