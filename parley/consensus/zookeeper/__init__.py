"""Apache ZooKeeper 3.6 or later, through kazoo: ``zookeeper://host:port,host:port/chroot?option=value``.

Where each part of the store is in ZooKeeper's tree: ``key_layout.py``. Where one-shot watches are set again:
``rearmed_watches.py``. How sessions, transactions and watches are built from ZooKeeper's parts is in
docs/store-backends.md.
"""

from __future__ import annotations

from parley.consensus.zookeeper.backend import ZookeeperBackend

__all__ = ["ZookeeperBackend"]
