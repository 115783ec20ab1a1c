"""kill -9 at random moments during appends: every appended batch is intact, and indexes, epochs and producers agree
with the batches.

The child process appends until it is killed. After each append it reports the log end to the parent, and after each
flush the recovery point, as in the checkpoint file. A killed process loses nothing that it wrote. In some rounds the
parent then removes part of the unflushed data, as a power failure would.
"""

from __future__ import annotations

import os
import select
import signal
import struct
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NoReturn

import pytest

from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import headers
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from tests.storage.logs import NOW, batch_of, check, check_segment, open_log

CONFIG = LogConfig(segment_bytes=100_000, segment_index_bytes=4000, index_interval_bytes=500)
REPORT = struct.Struct(">cq")
PRODUCERS = 3
REPORTS_MAX = 700
"""The maximum number of reports of a child before it is killed."""


def value_at(offset: int) -> bytes:
    """Return the value of these tests' record at an offset."""
    return b"%d-" % offset * (offset % 23 + 1)


def append_until_killed(directory: Path, seed: int, recovery_point: int, report: int) -> NoReturn:
    """Run the child process: append batches of random sizes, some idempotent; flush and roll now and then."""
    random = Random(seed)
    flushing = random.random() < 0.5
    log = open_log(directory, CONFIG, recovery_point=recovery_point)
    sequences = {entry.producer_id: entry.last_sequence + 1 for entry in log.producers.entries}
    while True:
        first, count = log.log_end_offset, random.randrange(1, 12)
        fields = {}
        producer = random.randrange(-1, PRODUCERS)
        if producer >= 0:
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences.get(producer, 0)}
            sequences[producer] = fields["base_sequence"] + count
        batch = batch_of(*map(value_at, range(first, first + count)), timestamp=NOW + first, **fields)
        log.append_as_leader(batch, leader_epoch=seed, now_ms=NOW)
        os.write(report, REPORT.pack(b"A", log.log_end_offset))
        if flushing and random.random() < 0.03:
            log.flush()
            os.write(report, REPORT.pack(b"F", log.recovery_point))
        if random.random() < 0.003:
            log.roll()


@dataclass
class Parent:
    """The parent's certain knowledge about the log."""

    directory: Path
    random: Random
    appended: int = 0
    flushed: int = 0
    verified: int = 0
    segments: int = 0
    """The maximum number of segments that the log can have had; the last of them may be lost."""
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The last sequence number and last offset of each producer in the verified records."""

    def run_child(self, seed: int) -> None:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                append_until_killed(self.directory, seed, self.flushed, writing)
            finally:
                os._exit(1)
        os.close(writing)
        wanted = 1 + int(self.random.random() ** 3 * REPORTS_MAX)
        reports = b""
        while len(reports) < wanted * REPORT.size:  # a slow machine writes this much too
            reports += os.read(reading, 1 << 16)
        select.select([], [], [], self.random.random() * 0.001)  # any instant of an append
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        while more := os.read(reading, 1 << 16):
            reports += more
        os.close(reading)
        for kind, offset in REPORT.iter_unpack(reports):
            if kind == b"A":
                self.appended = offset
            else:
                self.flushed = offset

    def lose_power(self) -> None:
        """Truncate one of the segments anywhere after its flushed part."""
        log = open_log(self.directory, CONFIG, recovery_point=self.flushed)
        log.release()
        segment = self.random.choice([s for s in log.segments if s.end_offset > self.flushed])
        whole = next((at for at, header in segment.batches() if header.last_offset >= self.flushed), segment.size)
        path = segment.path_of(".log")
        size = path.stat().st_size
        if size > whole:
            cut = self.random.randrange(whole, size)
            os.truncate(path, cut)
            if self.random.random() < 0.5:
                os.truncate(path, self.random.randrange(cut, size + 1000))
        for kind in (".index", ".timeindex"):
            os.truncate(segment.path_of(kind), self.random.randrange(4000))
        self.appended = self.flushed
        self.verified = min(self.verified, self.flushed)
        self.producers = {}

    def recover(self, *, clean: bool) -> None:
        """Open the log as a broker would, and check it."""
        log = open_log(self.directory, CONFIG, recovery_point=self.flushed)
        assert log.log_end_offset >= max(self.appended, self.flushed)
        self.segments = max(self.segments, len(log.segments))
        for segment in log.segments:
            if segment.end_offset > self.flushed:
                check_segment(segment)
        self.learn(log)
        known = {entry.producer_id: (entry.last_sequence, entry.last_offset) for entry in log.producers.entries}
        assert known == self.producers
        if clean:
            log.close()
            self.flushed = log.recovery_point
            log = open_log(self.directory, CONFIG, recovery_point=self.flushed, clean=True)
            assert log.log_end_offset == self.verified
        log.release()

    def learn(self, log: Log) -> None:
        """Check every new record, and record the producer of each batch."""
        offset = 0 if not self.producers else self.verified
        while offset < log.log_end_offset:
            data = log.read(offset, 1 << 20, up_to=log.log_end_offset).read()
            assert data
            for position, header in headers(data):
                if header.next_offset > self.verified:
                    found = [(record.offset, record.value) for record in records(data, position)]
                    assert found == [(n, value_at(n)) for n in range(header.base_offset, header.next_offset)]
                if header.producer_id >= 0:
                    self.producers[header.producer_id] = (header.last_sequence, header.last_offset)
                assert header.base_offset <= offset
                offset = header.next_offset
        self.verified = log.log_end_offset


def rounds(directory: Path, count: int) -> None:
    parent = Parent(directory, Random(count))
    for seed in range(count):
        parent.run_child(seed)
        if seed % 3 == 2:
            parent.lose_power()
        parent.recover(clean=seed % 10 == 9)
    log = open_log(directory, CONFIG, recovery_point=parent.flushed)
    check(log)
    assert log.log_end_offset == parent.verified
    assert parent.segments > 1


@pytest.mark.slow
def test_a_few_kills(tmp_path: Path) -> None:
    rounds(tmp_path, 30)


@pytest.mark.soak
def test_many_kills(tmp_path: Path) -> None:
    rounds(tmp_path, 480)
