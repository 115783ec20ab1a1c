"""The transaction boundaries of source tasks."""

from __future__ import annotations

import pytest

from parley.pipeline.connect import ConnectError, SourceRecord
from parley.pipeline.connect.tasks.boundaries import ByInterval, ByPoll, ByTask, Requests, Verdict


def record(topic: str = "t") -> SourceRecord:
    return SourceRecord(topic=topic)


def test_each_batch_that_was_polled_is_a_transaction() -> None:
    boundary = ByPoll()
    assert boundary.after_record(record()) is Verdict.CONTINUE
    assert boundary.after_poll(3, 0) is Verdict.COMMIT
    assert boundary.after_poll(0, 0) is Verdict.CONTINUE
    assert boundary.at_end() is Verdict.COMMIT


def test_an_interval_ends_whether_or_not_records_come() -> None:
    boundary = ByInterval(100, now_ms=1_000)
    assert boundary.after_record(record()) is Verdict.CONTINUE
    assert boundary.after_poll(3, 1_099) is Verdict.CONTINUE
    assert boundary.after_poll(0, 1_100) is Verdict.COMMIT
    assert boundary.after_poll(3, 1_199) is Verdict.CONTINUE
    assert boundary.after_poll(3, 1_200) is Verdict.COMMIT
    assert boundary.at_end() is Verdict.COMMIT


def test_a_task_ends_its_transactions_behind_batches() -> None:
    requests = Requests()
    boundary = ByTask(requests)
    assert boundary.after_poll(3, 0) is Verdict.CONTINUE
    requests.commit_transaction()
    assert boundary.after_poll(0, 0) is Verdict.CONTINUE  # the boundary is after the next batch
    assert boundary.after_poll(3, 0) is Verdict.COMMIT
    assert boundary.after_poll(3, 0) is Verdict.CONTINUE
    requests.abort_transaction()
    assert boundary.after_poll(3, 0) is Verdict.ABORT
    assert boundary.at_end() is Verdict.CONTINUE  # a transaction that the task has not ended is not committed
    requests.commit_transaction()
    assert boundary.at_end() is Verdict.COMMIT


def test_a_task_ends_its_transactions_behind_records() -> None:
    requests = Requests()
    boundary = ByTask(requests)
    first, twin, last = record(), record(), record()
    requests.commit_transaction(first)
    requests.abort_transaction(last)
    verdicts = [boundary.after_record(one) for one in (twin, first, last, first)]
    assert verdicts == [Verdict.CONTINUE, Verdict.COMMIT, Verdict.ABORT, Verdict.CONTINUE]


def test_a_commit_and_an_abort_of_the_same_exclude_each_other() -> None:
    requests = Requests()
    boundary = ByTask(requests)
    one = record("topic")
    requests.commit_transaction(one)
    requests.abort_transaction(one)
    with pytest.raises(ConnectError, match="both commit and abort of same record against topic/partition topic/None"):
        boundary.after_record(one)
    requests.commit_transaction()
    requests.abort_transaction()
    with pytest.raises(ConnectError, match="both commit and abort of same transaction"):
        boundary.after_poll(1, 0)
