"""Writes to the config topic as the leader of the workers' group, in transactions (KIP-618).

All leaders of a group share one transactional id. The leader that claims it fences earlier leaders: their
writes fail, even if they do not know yet that another worker leads. Instances of the schema registry write to their
topic in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.client.writing import Producer, Writing
from parley.pipeline.connect.distributed.blocking_calls import in_thread
from parley.protocol.errors import ErrorCode, KafkaError

_DELIVERY_MS: Final = 20_000
"""How long a write may take, and how long a dead leader's transaction may delay readers of the topic."""
_SCHEMA: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_log = logging.getLogger(__name__)


def leader_id(group: str) -> str:
    """Return the transactional id of a group's leader."""
    return f"connect-cluster-{group}"


class TransactionalWrites:
    """The leader's writes to a topic. After a failure, every write fails until the leader claims the id again.

    ``on_lost`` is called after a failure: the worker must find out which worker leads.
    """

    def __init__(
        self, connection: Connection, topic: str, transactional_id: str, *, on_lost: Callable[[], None]
    ) -> None:
        self._topic = topic
        self._writing = Writing(
            transactional_id=transactional_id, delivery_timeout_ms=_DELIVERY_MS, transaction_timeout_ms=_DELIVERY_MS
        )
        self._cluster = Cluster(connection)
        self._on_lost = on_lost
        self._producer: Producer | None = None
        self._turn = asyncio.Lock()

    async def claim(self) -> None:
        """Fence all earlier leaders. Raises KafkaError."""
        async with self._turn:
            self._producer = None
            self._producer = await in_thread(self._claimed)

    def _claimed(self) -> Producer:
        producer = Producer(self._cluster, self._writing)
        producer.identity()
        return producer

    async def send(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write all of the records or none. Raises KafkaError, for example if a later leader has fenced this one."""
        async with self._turn:
            producer, self._producer = self._producer, None
            if producer is None:
                raise KafkaError(ErrorCode.PRODUCER_FENCED, f"this worker may not write to {self._topic} at the moment")
            try:
                await in_thread(self._write, producer, records)
            except KafkaError as error:
                level = logging.INFO if error.code is ErrorCode.PRODUCER_FENCED else logging.WARNING
                _log.log(level, "this worker cannot write to %s at the moment: %s", self._topic, error)
                self._on_lost()
                raise
            self._producer = producer

    def _write(self, producer: Producer, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        keys, values = zip(*records, strict=True)
        arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
        try:
            producer.begin()
            producer.write(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA), topic=self._topic)
            producer.commit()
        except BaseException:
            producer.close()  # the next claim of the id aborts the transaction
            raise

    async def stop(self) -> None:
        """Close the connections."""
        await in_thread(self._cluster.close)
