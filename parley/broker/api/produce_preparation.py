"""Preparation of produced records for the log: the rules of their topic, and which records take a long time to prepare.

``parley.protocol.records.produce_validation`` validates the records. Records that take a long time to decompress or
convert are prepared in a thread. 3 KB can take half a second, so clients take turns for the threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from parley.broker.network.request_context import ConnectedClient, Disconnect
from parley.broker.replication.partition import Partition
from parley.broker.runtime.places import Places
from parley.broker.runtime.threads import RECORDS, Threads
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records.batch_header import TimestampType, is_compressed, is_legacy
from parley.protocol.records.compression import Compression
from parley.protocol.records.produce_validation import Prepared, ProduceRules, prepare
from parley.protocol.schema import Buffer
from parley.storage.append_checks import LOG_APPEND_TIME
from parley.storage.log_config import LogConfig
from parley.storage.resource_exhaustion import no_memory

OFF_LOOP_BYTES = 256 << 10
"""Records of this size or more are prepared in a thread if they must be decompressed or compressed."""
DECOMPRESSED_ON_LOOP_BYTES = 2 << 20
"""The maximum decompressed size of records that are prepared on the event loop, which takes a few milliseconds. If
records turn out to be larger, a thread prepares them from the start. (A thread for every batch of 64 KiB would double
the CPU time.)"""
LEGACY_ON_LOOP_BYTES = 16 << 10
"""Records of the old formats are converted on the event loop if they are smaller than this, which takes a few
milliseconds. A megabyte takes 0.2 seconds."""

THREADS_OF_A_CLIENT = RECORDS // 2
"""The maximum number of threads that prepare records of one user (or of one host, if the user is unknown) at the same
time."""


class PreparingThreads:
    """The threads that prepare records. Clients take turns."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._places = Places(RECORDS, THREADS_OF_A_CLIENT)

    async def run(self, client: ConnectedClient, prepare: Callable[[], Prepared], *, may_have_left: bool) -> Prepared:
        """Run ``prepare`` in a thread when it is the client's turn.

        Raises the errors of ``prepare``, and Disconnect if the client has disconnected by then. ``may_have_left`` is
        True if the client may disconnect as soon as it has sent its records. If such a client did not wait for its
        turn, its records are prepared even if it has disconnected.
        """
        user = client.session.user_or_host
        at_once = self._places.take_at_once(user)
        place = at_once or await self._places.take(user)
        try:
            if (at_once is None or not may_have_left) and client.has_left():
                raise Disconnect("")  # there is nothing to report
            return await asyncio.get_running_loop().run_in_executor(self._threads.records, prepare)
        finally:
            place.end()


def prepare_records(records: Buffer | None, rules: ProduceRules, now_ms: int, version: int) -> Prepared:
    """Validate and convert the records of a Produce request of this version with ``prepare``. Raises KafkaError: the
    errors of ``prepare``, and KAFKA_STORAGE_ERROR if memory runs out."""
    try:
        return prepare(records, rules, now_ms=now_ms, version=version)
    except MemoryError as error:  # the request has had no effect, so a retry is safe
        raise no_memory("validating the records") from error


def records_of(data: ProduceRequest.PartitionProduceData) -> Buffer | None:
    """Return the records of a decoded request as one buffer, or None if the request contains none."""
    return cast("Buffer | None", data.records)


def may_be_costly(records: Any) -> bool:
    """Return True if preparing the records may take a long time: they are compressed, large, or in an old format."""
    return records is not None and (len(records) >= OFF_LOOP_BYTES or is_compressed(records) or is_legacy(records))


def rules_of(partition: Partition) -> ProduceRules:
    """Return the validation rules of the partition's topic. Raises the errors of ``Partition.log``."""
    return rules_and_bounds(partition)[1]


def rules_and_bounds(partition: Partition) -> tuple[LogConfig, ProduceRules, ProduceRules]:
    """Return the partition's configuration, its validation rules, and the stricter rules for preparation on the event
    loop. Raises the errors of ``Partition.log``."""
    config = partition.log.config
    known = partition.produce_rules
    if known is None or known[0] is not config:
        rules = produce_rules(config)
        bounded = replace(rules, decompressed_bytes_max=min(rules.decompressed_bytes_max, DECOMPRESSED_ON_LOOP_BYTES))
        known = partition.produce_rules = (config, rules, bounded)
    return known


def produce_rules(config: LogConfig) -> ProduceRules:
    """Return the validation rules of a topic with this configuration."""
    compression = level = None
    if config.compression_type != "producer":
        name = config.compression_type
        compression = Compression.named("none" if name == "uncompressed" else name)
        level = {
            Compression.GZIP: config.compression_gzip_level,
            Compression.LZ4: config.compression_lz4_level,
            Compression.ZSTD: config.compression_zstd_level,
        }.get(compression)
    return ProduceRules(
        max_message_bytes=config.max_message_bytes,
        timestamp_type=(
            TimestampType.APPEND if config.message_timestamp_type == LOG_APPEND_TIME else TimestampType.CREATE
        ),
        timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        compression=compression,
        compression_level=level,
        require_keys=config.compact,
    )
