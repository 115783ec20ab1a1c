"""Keys are assigned to the same partitions as by Kafka's own clients."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
from confluent_kafka import Producer

from parley import Broker
from parley.pipeline.client.encode import bytes_of
from parley.pipeline.client.partitioner import Partitioner, partition_of

PARTITIONS = 7


def test_keys_go_where_librdkafka_sends_them() -> None:
    seeded = random.Random(1)
    keys = [b"", b"a", *(seeded.randbytes(seeded.randrange(1, 40)) for _ in range(500))]
    sent: dict[bytes, int] = {}
    with Broker({"num.partitions": str(PARTITIONS)}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2"})
        for key in keys:
            producer.produce(
                "keys",
                b"",
                key=key,
                on_delivery=lambda _, message: sent.update({message.key() or b"": message.partition() or 0}),
            )
        assert producer.flush(30) == 0
    assert [partition_of(key, PARTITIONS) for key in keys] == [sent[key] for key in keys]
    column = bytes_of(pa.array(keys, pa.binary()), "key")
    assert Partitioner().assign(column, column, PARTITIONS).tolist() == [sent[key] for key in keys]


def test_keyless_records_stay_together_and_reach_all_partitions() -> None:
    partitioner = Partitioner(first=2, sticky_bytes=100)
    keys = bytes_of(pa.nulls(30, pa.binary()), "key")
    values = bytes_of(pa.array([b"x" * 9] * 30), "value")
    chosen = partitioner.assign(keys, values, 3).tolist() + partitioner.assign(keys, values, 3).tolist()
    assert chosen == [2] * 10 + [0] * 10 + [1] * 10 + [2] * 10 + [0] * 10 + [1] * 10
    assert Counter(chosen) == {0: 20, 1: 20, 2: 20}


def test_keyless_records_do_not_disturb_keyed_ones() -> None:
    keys = bytes_of(pa.array([b"k", None, b"k", None], pa.binary()), "key")
    values = bytes_of(pa.array([b"", b"", b"", None]), "value")
    chosen = Partitioner(first=1).assign(keys, values, 5).tolist()
    assert chosen == [partition_of(b"k", 5), 1, partition_of(b"k", 5), 1]
