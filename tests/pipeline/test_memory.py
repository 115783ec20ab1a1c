"""The memory that reading and writing use does not grow with the topic."""

from __future__ import annotations

import subprocess
import sys

import pytest

from parley import Broker

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import pyarrow as pa
from parley import scan_topic
from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.client.writing import Producer, Writing
from parley.protocol.records.compression import Compression


def peak_mib() -> int:
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def write(rows: int) -> None:
    piece = pa.RecordBatch.from_pydict({"value": [b"x" * 1000] * 1000})
    connection = Connection(bootstrap=sys.argv[1])
    with Cluster(connection) as cluster, Producer(cluster, Writing(compression=Compression.ZSTD)) as producer:
        for _ in range(rows // 1000):
            producer.write(piece, topic=f"t-{rows}")


def read(rows: int) -> None:
    assert sum(batch.num_rows for batch in scan_topic(sys.argv[1], f"t-{rows}")) == rows


for work in (write, read):
    for rows in (100_000, 500_000):  # 100 MB and 500 MB, much less compressed
        work(rows)
        print(peak_mib())
"""


def test_five_times_the_records_take_no_more_memory() -> None:
    with Broker({"num.partitions": "2"}) as broker:
        command = [sys.executable, "-c", PROGRAM, broker.bootstrap_servers]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    written, written_five, read, read_five = map(int, done.stdout.split())
    assert written_five - written < 60, done.stdout
    assert read - written_five < 150, done.stdout
    assert read_five - read < 100, done.stdout
