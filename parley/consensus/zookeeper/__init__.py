"""Apache ZooKeeper 3.6 or later, through kazoo: ``zookeeper://host:port,host:port/chroot?option=value``.

``key_layout.py`` describes where each part of the store is in ZooKeeper's tree, and ``rearmed_watches.py`` when
one-shot watches are set again. docs/store-backends.md explains how sessions, transactions and watches are built on
ZooKeeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parley.consensus.zookeeper.backend import ZookeeperBackend as ZookeeperBackend

__all__ = ["ZookeeperBackend"]


def __getattr__(name: str) -> object:
    if name == "ZookeeperBackend":  # a broker reads the configuration keys of this package without importing kazoo
        from parley.consensus.zookeeper.backend import ZookeeperBackend

        return ZookeeperBackend
    raise AttributeError(name)
