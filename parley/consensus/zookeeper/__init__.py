"""Apache ZooKeeper 3.6 or later, through kazoo: ``zookeeper://host:port,host:port/chroot?option=value``.

Where each part of the store is in ZooKeeper's tree: ``key_layout.py``. Where one-shot watches are set again:
``rearmed_watches.py``. How sessions, transactions and watches are built from ZooKeeper's parts is in
docs/store-backends.md.
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
