"""A repeated failure is logged once, and counted."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from parley.broker.logging.unexpected_errors import INTERVAL_S, FailureLog, log_loop_error
from parley.storage.resource_exhaustion import MEMORY


def fail(kind: type[Exception], *, elsewhere: bool = False) -> Exception:
    try:
        if elsewhere:
            raise kind("planted elsewhere")
        raise kind("planted")
    except Exception as error:
        return error


def test_one_failure_of_a_kind_is_logged_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(logging.getLogger("test"))
    for now_s in range(10):
        failures.report("Fetch failed", fail(ValueError), now_s, topic="t")
    assert [(r.message, r.topic) for r in caplog.records] == [("Fetch failed", "t")]  # type: ignore[attr-defined]
    assert caplog.records[0].exc_info
    failures.report("Fetch failed", fail(ValueError, elsewhere=True), 10)
    failures.report("Produce failed", fail(ValueError), 10)
    assert len(caplog.records) == 3
    failures.report("Fetch failed", fail(ValueError), INTERVAL_S)
    assert caplog.records[3].not_logged == 9  # type: ignore[attr-defined]
    failures.report("Fetch failed", fail(ValueError), 2 * INTERVAL_S)
    assert not hasattr(caplog.records[4], "not_logged")


def test_an_error_in_the_event_loop_that_is_a_shortage_is_logged_as_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MEMORY, "lost_work", None)
    others: list[dict[str, Any]] = []
    loop: Any = SimpleNamespace(default_exception_handler=others.append)
    log_loop_error(loop, {"exception": MemoryError(), "message": "Fatal error on transport"})
    assert isinstance(MEMORY.lost_work, MemoryError)
    assert "a callback ended for lack of memory or file descriptors" in caplog.text
    assert not others
    for context in ({"exception": ValueError()}, {"message": "no exception"}):
        log_loop_error(loop, context)
    assert len(others) == 2


def test_a_shortage_is_noted_each_time_and_logged_without_a_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MEMORY, "lost_work", None)
    before = MEMORY.shortages
    failures = FailureLog(logging.getLogger("test"))
    for now_s in (0.0, 1.0):
        failures.report("a thing failed", fail(MemoryError), now_s)
    assert MEMORY.shortages == before + 2
    assert MEMORY.lost_work is not None
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None
    assert caplog.records[0].__dict__["reason"] == "planted"
