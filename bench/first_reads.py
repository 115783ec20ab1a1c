"""``python -m bench.first_reads FOLDER``: the CPU time of the first read of a log after a clean restart, by batch size.

Runs in one process, without a broker or a network, so it measures verification alone. It prints a JSON object with the
CPU seconds per GB: of the first read, of the second read, and of a copy and a checksum of the same file in large
pieces, which no verification without a mapped file can do without.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from parley.protocol.records.batch import build
from parley.protocol.records.crc32c import crc32c
from parley.protocol.records.record import Record
from parley.storage.loaded_log import LastKnown
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_place import LogEvents, LogPlace, LogSettings
from parley.storage.segment_names import LOG_SUFFIX

NOW = 1_790_000_000_000
RECORD = 1000
READ = 1 << 20
PIECE = 256 << 10


def opened(folder: Path, **known: int | bool) -> Log:
    """Open the log in ``folder``."""
    settings = LogSettings(config=LogConfig(), now_ms=lambda: NOW, random=Random(1))
    place = LogPlace(folder, "first-reads", 0, events=LogEvents(lambda error: None))
    return Log.open(place, settings, LastKnown(**known))  # type: ignore[arg-type]


def filled(folder: Path, batch_bytes: int, total: int) -> int:
    """Write a log of batches with about ``batch_bytes`` bytes each. Returns its end offset."""
    folder.mkdir(parents=True)
    size = min(RECORD, batch_bytes)
    batch = build([Record(0, NOW, None, os.urandom(size)) for _ in range(max(1, batch_bytes // size))])
    log = opened(folder)
    for _ in range(total // len(batch)):
        log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW)
    end = log.log_end_offset
    log.close()
    return end


def read_all(log: Log) -> int:
    """Plan a read of every batch, which verifies it. Returns the number of bytes."""
    offset, total = 0, 0
    while offset < log.log_end_offset:
        read = log.read(offset, READ, up_to=log.log_end_offset)
        assert read.next_offset is not None
        offset, total = read.next_offset, total + read.size
    return total


def read_plainly(log: Log) -> int:
    """Copy the log's files from the page cache, and compute a checksum of the copy. Returns the number of bytes."""
    buffer, total = bytearray(PIECE), 0
    for segment in log.segments:
        with open(segment.path_of(LOG_SUFFIX), "rb", buffering=0) as file:
            while size := file.readinto(buffer):
                crc32c(memoryview(buffer)[:size])
                total += size
    return total


def cost(work: Callable[[Log], int], log: Log) -> float:
    """Run ``work``, which returns the number of bytes that it has read. Returns its CPU seconds per GB."""
    before = time.process_time()
    total = work(log)
    return (time.process_time() - before) / (total / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--bytes", type=int, default=256_000_000)
    options = parser.parse_args()
    end = filled(options.folder, options.batch, options.bytes)
    log = opened(options.folder, clean=True, recovery_point=end)
    costs = {"first": cost(read_all, log), "again": cost(read_all, log), "plain": cost(read_plainly, log)}
    log.close()
    print(json.dumps(costs))


if __name__ == "__main__":
    main()
