"""Failed log directories, before and after the components that use the logs exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parley.broker.metrics.health import Health
from parley.broker.startup.logs import DirectoryFailures
from parley.storage.log_directory import LogDirectory


def test_a_failure_is_reported_even_before_the_partitions_exist(tmp_path: Path) -> None:
    health = Health()
    lost: list[list[Any]] = []
    failures = DirectoryFailures(health)
    first, second = LogDirectory(tmp_path / "1"), LogDirectory(tmp_path / "2")
    early: list[Any] = ["a log"]
    failures(first, early)
    failures.report_logs_to(lost.append)
    late: list[Any] = ["another log"]
    failures(second, late)
    assert lost == [late]
    assert sorted(health.report()[1]["problems"]) == [str(first), str(second)]
