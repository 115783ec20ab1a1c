"""Apache ZooKeeper as the coordination store, 3.6 or newer, through kazoo (``pip install parley-broker[zookeeper]``).

How the interface is made of ZooKeeper's parts:

* ``key_layout.py``: where things are in the tree. A key is one znode in one of 256 buckets, found by its hash, so that no
  znode has too many children. Its data begins with the session it is bound to.
* ``session.py``: a session is one ephemeral znode, kept by a connection of its own whose timeout is the TTL. A bound
  key counts as absent from the moment on in which that znode is gone: so one transaction can write under several
  sessions, and all the keys of a session end in one step. What is left of them is swept up by whoever finds it.
* ``transactions.py``: a transaction reads what it concerns, decides, and sends a ``multi`` that fails if that has changed.
* ``consistent_reads.py``: ``sync`` and then ``multiRead``, which ZooKeeper answers from one state.
* ``change_feed.py``, ``watch.py``: every ``multi`` appends the keys it changed to a log of sequential znodes. A client follows
  it with two one-shot watches, whatever the number of keys and of watches; who falls behind its end gets a Snapshot.
* ``connection.py``: kazoo's thread on one side, futures on the other. ``multi_requests.py``: the two requests kazoo lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parley.consensus.zookeeper.backend import ZookeeperBackend as ZookeeperBackend

__all__ = ["ZookeeperBackend"]


def __getattr__(name: str) -> object:
    if name == "ZookeeperBackend":  # the configuration keys are read without importing kazoo
        from parley.consensus.zookeeper.backend import ZookeeperBackend

        return ZookeeperBackend
    raise AttributeError(name)
