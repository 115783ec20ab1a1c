"""Chooses a record's partition like Kafka's own producer.

The hash of a record's key (murmur2) decides, so all records with the same key are in one partition, and every Kafka
client chooses the same one. Records without a key stay with one partition for a while and then move on to the next
(KIP-480, KIP-794), so that batches fill.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from parley.pipeline.client._build import Bytes, hash_keys, murmur2

STICKY_BYTES: Final = 64 * 1024
"""After about this many bytes, records without a key move on to the next partition."""


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key in a topic with this many partitions."""
    return (murmur2(key, 0, len(key)) & 0x7FFF_FFFF) % partitions


class Partitioner:
    """Chooses the partitions of one topic. Each call passes the number of partitions.

    Records without a key start with the partition ``first``, which the caller chooses at random. Otherwise many tasks
    would start with the same partition.
    """

    def __init__(self, first: int = 0, sticky_bytes: int = STICKY_BYTES) -> None:
        self._sticky_bytes = sticky_bytes
        self._written = first * sticky_bytes

    def assign(self, keys: Bytes, values: Bytes, partitions: int) -> npt.NDArray[np.int32]:
        """Return the partition of each row. Rows without a key continue in the partition in which the last
        call ended.
        """
        chosen = np.remainder(np.frombuffer(hash_keys(keys), np.int64), partitions)
        if keys.nulls:
            keyless = np.flatnonzero(np.frombuffer(keys.nulls, np.uint8))
            offsets = np.frombuffer(values.offsets, np.int64)
            sizes: npt.NDArray[np.int64] = (offsets[1:] - offsets[:-1])[keyless] + 1
            written: npt.NDArray[np.int64] = self._written + np.cumsum(sizes)
            # The bytes before a row decide its partition.
            chosen[keyless] = (written - sizes) // self._sticky_bytes % partitions
            if len(written):
                self._written = int(written[-1])
        return chosen.astype(np.int32)
