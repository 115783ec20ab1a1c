"""A repeated failure is logged once, and counted."""

from __future__ import annotations

import logging

import pytest

from parley.broker.logging.unexpected_errors import INTERVAL_S, FailureLog


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
