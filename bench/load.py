"""Produce or consume with librdkafka's C API (from ``confluent-kafka``), without a Python object per record.

Run it as ``python -m bench.load produce|consume ...``. It prints a JSON object with the amount and the duration.
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import json
import os
import time
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka

BATCH = 10_000
"""The number of records per call of librdkafka."""

TRANSACTION_RECORDS = 50_000
"""The number of records per transaction, if transactions are used."""

PARTITION_BY_ROUND = 0x8 | 0x20
"""Flags of rd_kafka_produce_batch: each message names its partition, and the call blocks while the queue is full."""


class _Message(ctypes.Structure):
    """The C structure ``rd_kafka_message_t``."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("_private", ctypes.c_void_p),
    )


def _library() -> Any:
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    names = glob.glob(str(folder / "librdkafka-*.so*"))
    library = ctypes.CDLL(names[0])
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_topic_new.restype = ctypes.c_void_p
    for step in ("init_transactions", "begin_transaction", "commit_transaction"):
        getattr(library, f"rd_kafka_{step}").restype = ctypes.c_void_p
    library.rd_kafka_error_string.restype = ctypes.c_char_p
    return library


class _Transactions:
    """Transactions of ``TRANSACTION_RECORDS`` records each, if the producer has a transactional id."""

    def __init__(self, library: Any, producer: ctypes.c_void_p, settings: dict[str, str]) -> None:
        self._library = library
        self._producer = producer
        self._is_used = "transactional.id" in settings
        self._left = TRANSACTION_RECORDS
        self._do("init_transactions", ctypes.c_int(60_000))
        self._do("begin_transaction")

    def sent(self, records: int) -> None:
        """Count records that were produced, and begin another transaction if this one is full."""
        self._left -= records
        if self._left <= 0:
            self.end()
            self._do("begin_transaction")
            self._left = TRANSACTION_RECORDS

    def end(self) -> None:
        """Commit the open transaction, if transactions are used."""
        self._do("commit_transaction", ctypes.c_int(60_000))

    def _do(self, step: str, *arguments: ctypes.c_int) -> None:
        if self._is_used:
            error = getattr(self._library, f"rd_kafka_{step}")(self._producer, *arguments)
            if error:
                raise SystemExit(self._library.rd_kafka_error_string(ctypes.c_void_p(error)).decode())


def _text(size: int) -> bytes:
    """Return JSON with varying numbers, which compresses to about a fifth, like events of an application."""
    rng = Random(1)
    lines = (
        b'{"id":%d,"customer":"customer-%d","paid":true,"price":%d}\n'
        % (rng.randrange(10**6), rng.randrange(1000), rng.randrange(10**4))
        for _ in range(size // 40 + 1)
    )
    return b"".join(lines)[:size]


def produce(
    bootstrap: str,
    topic: str,
    partitions: int,
    size: int,
    total_bytes: int,
    settings: dict[str, str],
    *,
    compressible: bool = False,
) -> Any:
    """Produce ``total_bytes`` of records of ``size`` bytes, round robin over the partitions. Returns the numbers of
    records and bytes, and the seconds. Raises SystemExit if a setting is invalid or a transaction fails."""
    rd = _library()
    conf = ctypes.c_void_p(rd.rd_kafka_conf_new())
    error = ctypes.create_string_buffer(512)
    options = {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": "500000", "linger.ms": "5", **settings}
    for name, value in options.items():
        if rd.rd_kafka_conf_set(conf, name.encode(), value.encode(), error, ctypes.c_size_t(512)) != 0:
            raise SystemExit(error.value.decode())
    producer = ctypes.c_void_p(rd.rd_kafka_new(0, conf, error, ctypes.c_size_t(512)))
    if not producer:
        raise SystemExit(error.value.decode())
    handle = ctypes.c_void_p(rd.rd_kafka_topic_new(producer, topic.encode(), None))
    # Each record is another slice of random bytes, so that compression has no effect, or of text.
    payload = ctypes.create_string_buffer((_text if compressible else os.urandom)(size + BATCH))
    start_address = ctypes.addressof(payload)
    messages = (_Message * BATCH)()
    for i, message in enumerate(messages):
        message.partition = i % partitions
        message.payload = start_address + i
        message.len = size
    count = total_bytes // size
    transactions = _Transactions(rd, producer, settings)
    began = time.perf_counter()
    sent = 0
    while sent < count:
        wanted = min(BATCH, count - sent)
        flags = 0x2 | PARTITION_BY_ROUND  # 0x2: librdkafka copies the payload
        taken = rd.rd_kafka_produce_batch(handle, ctypes.c_int32(-1), flags, messages, wanted)
        sent += taken
        rd.rd_kafka_poll(producer, 0)
        transactions.sent(taken)
    transactions.end()
    while rd.rd_kafka_outq_len(producer) > 0:
        rd.rd_kafka_flush(producer, 1000)
    return {"records": sent, "bytes": sent * size, "seconds": time.perf_counter() - began}


def consume(bootstrap: str, topic: str, partitions: int, size: int, total_bytes: int, settings: dict[str, str]) -> Any:
    """Consume ``total_bytes`` of records of ``size`` bytes from the beginning of all partitions. Returns the numbers of
    records and bytes, and the seconds since the first records. Raises SystemExit if no record arrives for ten
    seconds."""
    options = {
        "bootstrap.servers": bootstrap,
        "group.id": "bench",
        "enable.auto.commit": "false",
        "fetch.wait.max.ms": "100",
        "queued.max.messages.kbytes": "131072",
        # The client pauses for a second by default when its queue is full, and the faster the broker, the more often.
        "fetch.queue.backoff.ms": "10",
        **settings,
    }
    consumer = confluent_kafka.Consumer(options)
    begin = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, p, begin) for p in range(partitions)])
    count, got = total_bytes // size, 0
    first: float | None = None
    while got < count:
        records = consumer.consume(min(BATCH, count - got), timeout=10)
        if not records:
            raise SystemExit(f"only {got} of {count} records came")
        first = first or time.perf_counter()
        got += len(records)
    seconds = time.perf_counter() - (first or 0.0)
    consumer.close()
    return {"records": got, "bytes": got * size, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("produce", "consume"))
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=400_000_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--compressible", action="store_true", help="produce text instead of random bytes")
    given = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in given.set)
    what = (given.bootstrap, given.topic, given.partitions, given.size, given.bytes, settings)
    done = produce(*what, compressible=given.compressible) if given.work == "produce" else consume(*what)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
