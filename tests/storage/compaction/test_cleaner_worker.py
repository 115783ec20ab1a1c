"""The workers of the log cleaner: a separate process that never outlives the broker, or a thread."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from parley.storage.compaction.cleaner_worker import (
    NICE,
    OOM_SCORE,
    Pace,
    ProcessWorker,
    ThreadWorker,
    Worker,
    WorkerEnded,
    WorkerNotStarted,
    _Job,
)
from parley.storage.compaction.compactor import CompactedGroup, CompactionResult, Uncleanable
from parley.storage.compaction.segment_replacement import SegmentReplacement
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from tests.storage.compaction.compactions import settled, table
from tests.storage.logs import NOW, append, open_log

CONFIG = LogConfig(
    segment_bytes=4096, segment_index_bytes=1024, index_interval_bytes=200, cleanup_policy=frozenset({"compact"})
)
RECORDS = 300
UNLIMITED = 1e300


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log of several sealed segments, all with the same key."""
    log = open_log(tmp_path, CONFIG)
    for number in range(RECORDS):
        append(log, b"value-%d" % number)
    return settled(log)


def begun(log: Log) -> SegmentReplacement:
    return log.begin_compaction(log.dirtiness(NOW), now_ms=NOW)


def compact_with(worker: Worker, log: Log) -> CompactionResult:
    with begun(log) as compaction:

        def adopt(group: CompactedGroup) -> None:
            for path in compaction.adopt(group):
                path.unlink()

        result = worker.compact(compaction.request, adopt, UNLIMITED)
        compaction.finish(result)
    return result


@pytest.mark.slow
def test_a_process_compacts_one_log_after_another(log: Log) -> None:
    worker = ProcessWorker()
    try:
        assert compact_with(worker, log).stats.records_kept < RECORDS
        assert table(log) == {b"key": b"value-%d" % (RECORDS - 1)}
        pid = worker.pid
        assert pid is not None
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
        own, score = (int(Path(f"/proc/{each}/oom_score_adj").read_text()) for each in ("self", pid))
        assert score == min(1000, own + OOM_SCORE)
        for number in range(RECORDS, 2 * RECORDS):
            append(log, b"value-%d" % number)
        compact_with(worker, settled(log))
        assert table(log) == {b"key": b"value-%d" % (2 * RECORDS - 1)}
        assert worker.pid == pid
        for meant_for_the_broker in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, meant_for_the_broker)
        compact_with(worker, log)
    finally:
        worker.close()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_a_process_that_is_stopped_leaves_the_log_as_it_is(log: Log) -> None:
    worker, paths = ProcessWorker(), sorted(log.directory.iterdir())
    with begun(log) as compaction, pytest.raises(WorkerEnded):
        worker.compact(compaction.request, lambda group: worker.stop(), UNLIMITED)
    assert sorted(log.directory.iterdir()) == paths
    assert not Path(f"/proc/{worker.pid}").exists()
    with begun(log) as compaction, pytest.raises(WorkerEnded):
        worker.compact(compaction.request, lambda group: None, UNLIMITED)


@pytest.mark.slow
def test_failures_come_out_of_the_process_as_they_are(log: Log) -> None:
    worker = ProcessWorker()
    path = log.segments[0].path_of(".log")
    intact = path.read_bytes()
    try:
        with begun(log) as compaction:
            path.write_bytes(intact[:100] + bytes([intact[100] ^ 1]) + intact[101:])
            with pytest.raises(Uncleanable, match=r"^topic-0 cannot be compacted"):
                worker.compact(compaction.request, lambda group: None, UNLIMITED)
            path.unlink()
            with pytest.raises(FileNotFoundError):
                worker.compact(compaction.request, lambda group: None, UNLIMITED)
    finally:
        worker.close()


@pytest.mark.slow
def test_a_group_that_is_not_adopted_ends_the_process(log: Log) -> None:
    worker = ProcessWorker()

    def refuse(group: CompactedGroup) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log was changed")

    with begun(log) as compaction, pytest.raises(KafkaError, match="the log was changed"):
        worker.compact(compaction.request, refuse, UNLIMITED)
    assert not Path(f"/proc/{worker.pid}").exists()


def test_a_process_that_cannot_be_started(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with begun(log) as compaction, pytest.raises(WorkerNotStarted, match="cannot be started"):
        ProcessWorker().compact(compaction.request, lambda group: None, UNLIMITED)


_BROKER = """
import pickle, sys
from parley.storage.compaction.cleaner_worker import ProcessWorker

def wait(group):
    print(worker.pid, flush=True)
    sys.stdin.read()

worker = ProcessWorker()
worker.compact(pickle.load(sys.stdin.buffer), wait, 1e300)
"""


@pytest.mark.slow
def test_a_process_ends_when_the_broker_is_killed(log: Log) -> None:
    with begun(log) as compaction:
        broker = subprocess.Popen([sys.executable, "-c", _BROKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert broker.stdin is not None
        assert broker.stdout is not None
        with broker, broker.stdin, broker.stdout:
            pickle.dump(compaction.request, broker.stdin)
            broker.stdin.flush()
            pid = int(broker.stdout.readline())
            watched = os.pidfd_open(pid)
            try:
                broker.kill()
                assert select.select([watched], [], [], 60)[0], "the worker process outlives the broker"
            finally:
                os.close(watched)


@pytest.mark.slow
def test_a_process_whose_broker_does_not_read_any_more_ends_silently(log: Log) -> None:
    command = [sys.executable, "-c", "from parley.storage.compaction.cleaner_worker import main; main()"]
    pipe = subprocess.PIPE
    with begun(log) as compaction, subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        pickle.dump(_Job(compaction.request, UNLIMITED), process.stdin)
        process.stdin.flush()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_a_thread_ends_at_the_next_read_or_write(log: Log) -> None:
    worker = ThreadWorker(lambda: 0.0)
    with begun(log) as compaction:

        def adopt(group: CompactedGroup) -> None:
            compaction.adopt(group)
            worker.stop()

        with pytest.raises(WorkerEnded):
            worker.compact(compaction.request, adopt, UNLIMITED)
    assert table(log) == {b"key": b"value-%d" % (RECORDS - 1)}
    assert compact_with(ThreadWorker(lambda: 0.0), log).stats.records_kept < RECORDS


def test_a_thread_counts_what_it_has_read(log: Log) -> None:
    worker = ThreadWorker(lambda: 0.0)
    with begun(log) as compaction:
        worker.compact(compaction.request, lambda group: None, UNLIMITED)
        assert worker.done_bytes == compaction.request.bytes_to_read
        assert worker.done_bytes == 2 * sum(each.size for each in compaction.request.segments)


@pytest.mark.slow
def test_a_process_tells_how_much_it_has_read(log: Log) -> None:
    worker = ProcessWorker()

    def run() -> None:
        with suppress(WorkerEnded), begun(log) as compaction:
            worker.compact(compaction.request, lambda group: None, 10_000)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 60
    try:
        while not worker.done_bytes and time.monotonic() < deadline:
            thread.join(0.05)
        assert 0 < worker.done_bytes < 2 * log.size_bytes
    finally:
        worker.stop()
        thread.join()


def test_a_pace_waits_if_work_came_too_early() -> None:
    now, pauses = [100.0], list[float]()

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    pace = Pace(1000, wait, lambda: now[0])
    for _ in range(4):
        pace(500)
    assert pauses == [0.5] * 4
    now[0] += 10  # unused throughput is not saved up
    pace(1000)
    pace(1)
    assert pauses[4:] == [1.0]
    assert pauses[5:] == []  # the throughput of a one-millisecond pause is saved up
