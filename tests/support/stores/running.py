"""Every real store that tests can be run on, by the scheme of its address; what each needs is imported by its users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def _consul() -> Iterator[str]:
    from tests.support.stores.consul import consul_servers

    with consul_servers() as servers:
        yield servers.url


@contextmanager
def _etcd() -> Iterator[str]:
    from tests.support.stores.etcd import etcd_servers

    with etcd_servers() as servers:
        yield servers.url


@contextmanager
def _zookeeper() -> Iterator[str]:
    from tests.support.stores.zookeeper import zookeeper_servers

    with zookeeper_servers() as servers:
        yield servers.url


STORES: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "consul": _consul,
    "etcd": _etcd,
    "zookeeper": _zookeeper,
}
"""For each scheme what starts a server and gives its address; ``below`` leads to a folder of one's own there."""


def below(url: str, folder: str) -> str:
    """The address of a folder of the store at ``url``, which may say more of the store behind a ``?``."""
    address, *more = url.split("?", 1)
    return "?".join([f"{address}/{folder}", *more])
