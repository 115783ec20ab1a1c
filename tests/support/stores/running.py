"""Every real store that tests can be run on, by the scheme of its address; what each needs is imported by its users."""

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
"""For each scheme what starts a server."""


@contextmanager
def _address(start: Callable[[], AbstractContextManager[Servers]]) -> Iterator[str]:
    with start() as servers:
        yield servers.url


STORES: dict[str, Callable[[], AbstractContextManager[str]]] = {
    scheme: partial(_address, start) for scheme, start in SERVERS.items()
}
"""For each scheme what starts a server and gives its address; ``below`` leads to a folder of one's own there."""


def below(url: str, folder: str) -> str:
    """The address of a folder of the store at ``url``, which may say more of the store behind a ``?``."""
    address, *more = url.split("?", 1)
    return "?".join([f"{address}/{folder}", *more])
