"""The stores that come with Parley: their backends and their configuration keys. Imports no client library."""

from __future__ import annotations

from collections.abc import Mapping

from parley.consensus.store_config import StoreConfig
from parley.consensus.zookeeper import config_keys as zookeeper

BACKENDS: Mapping[str, str] = {
    "consul": "parley.consensus.consul:ConsulBackend",
    "etcd": "parley.consensus.etcd:EtcdBackend",
    "local": "parley.consensus.local:LocalBackend",
    "memory": "parley.consensus.memory:MemoryBackend",
    "zookeeper": "parley.consensus.zookeeper:ZookeeperBackend",
}
"""The backend class of each scheme. Finding it here is faster than reading the metadata of every distribution."""

CONFIGS: Mapping[str, StoreConfig] = {"zookeeper": zookeeper.CONFIG}
"""``Backend.config`` of the stores that define keys, by scheme."""
