"""etcd, version 3.4 or later, over gRPC: ``etcd://host:2379,host2:2379/prefix``.

::

    <prefix>/identity       the store's random name, written once
    <prefix>/data/<key>     the entries; an entry bound to a session is attached to its lease

docs/store-backends.md describes how sessions, watches and transactions are built on etcd.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what gRPC would print to standard error is in the errors raised

from parley.consensus.etcd.backend import EtcdBackend

__all__ = ["EtcdBackend"]
