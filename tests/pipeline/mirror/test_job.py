"""When a mirror's query is started again; tested without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from parley.pipeline.mirror import job
from parley.pipeline.mirror.settings import MirrorSettings

PASSING = "Python worker failed to connect back"


class Query:
    """A streaming query that fails, or ends without an error."""

    def __init__(self, problem: str) -> None:
        self.isActive = False
        self._problem = problem

    def exception(self) -> str | None:
        return self._problem or None


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the outcomes of the future queries, in order. Each start of a query removes the first."""
    problems: list[str] = []
    monkeypatch.setattr(job, "AGAIN_S", 0.0)
    monkeypatch.setattr(job, "_query", lambda *_: Query(problems.pop(0)))
    return problems


def once() -> None:
    session: Any = SimpleNamespace(dataSource=SimpleNamespace(register=lambda _: None), sparkContext=None)
    job.run(
        session, MirrorSettings(()), now_ms=lambda: 0, over=threading.Event(), on_progress=lambda _: None, once=True
    )


def test_a_single_run_is_also_repeated_after_temporary_errors(begun: list[str]) -> None:
    begun += [PASSING, PASSING, "", "not begun"]
    once()
    assert begun == ["not begun"]


def test_a_run_gives_up_after_repeated_errors(begun: list[str]) -> None:
    begun += [PASSING] * job.ATTEMPTS + ["not begun"]
    with pytest.raises(job.MirrorFailed, match=PASSING):
        once()
    assert begun == ["not begun"]


def test_a_lost_connection_after_a_requested_stop_is_no_failure() -> None:
    over = threading.Event()

    class Ending:
        def __getattr__(self, _: str) -> Any:
            over.set()
            raise ConnectionRefusedError(111, "Connection refused")

    ending: Any = Ending()
    assert job._wait(ending, over) == ""
