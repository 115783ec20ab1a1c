"""Consul's KV store, over HTTP: ``consul://host:8500[,host:8500...][/prefix][?option=value...]``.

::

    <prefix>/identity            the store's identity, 32 hexadecimal digits
    <prefix>/identity/<name>     exists while the store has this identity; every transaction checks it
    <prefix>/keys/<key>          the entries; those bound to a session are locked by it

docs/store-backends.md describes how transactions, sessions and watches are built on Consul.
"""

from parley.consensus.consul.backend import ConsulBackend

__all__ = ["ConsulBackend"]
