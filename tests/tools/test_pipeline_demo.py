"""``make pipeline``: the changes it reads from a git log, and its report of the totals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from parley.tools.pipeline_demo import _changes, _counts, _from_log, _report, _window
from parley.tools.pipeline_plot import Sample, rates

LOG = """\
@c2 1700000600

1\t0\tREADME.md
-\t-\tdocs/picture.png
@c1 1700000000

10\t2\tbroker/a b.py
"""


def test_a_change_is_a_file_in_a_commit() -> None:
    found = list(_from_log(LOG))
    assert [(one["commit"], one["folder"], one["path"], one["added"], one["deleted"]) for one in found] == [
        ("c2", ".", "README.md", 1, 0),
        ("c2", "docs", "docs/picture.png", 0, 0),
        ("c1", "broker", "broker/a b.py", 10, 2),
    ]
    assert found[0]["at"] == "2023-11-14T22:23:20+00:00"


@pytest.mark.slow
def test_there_are_changes_in_order_of_time() -> None:
    times = [one["at"] for one in _changes()]
    assert times
    assert times == sorted(times)


@pytest.mark.parametrize(("hours", "window"), [(1, "1 minute"), (50, "10 minutes"), (1000, "6 hours"), (9000, "1 day")])
def test_a_longer_history_is_counted_in_longer_windows(hours: int, window: str) -> None:
    log = f"@a 0\n\n1\t1\tx\n@b {hours * 3600}\n\n1\t1\ty\n"
    assert _window(list(_from_log(log))) == window


def test_a_window_that_was_written_twice_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = list(_from_log(LOG))
    lines = [json.dumps({"from": "x", "folder": folder, "changes": 1}) for folder in (".", "docs", "broker")]
    path = tmp_path / "counts"
    path.write_text("\n".join([*lines, '{"from": "cut o']))
    assert _counts(path) == Counter({".": 1, "docs": 1, "broker": 1})
    assert _report(changes, _counts(path)) == 0
    path.write_text("\n".join([*lines, lines[0], ""]))
    assert _report(changes, _counts(path)) == 1
    assert "differs" in capsys.readouterr().out


@pytest.mark.slow
def test_without_git_the_files_are_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "parley/tools/pipeline_demo.py" in [one["path"] for one in _changes()]


def test_rates_are_of_the_time_just_before() -> None:
    samples = [Sample(0, 0, 0), Sample(1, 10, 0), Sample(5, 10, 20)]
    assert rates(samples) == [(1, 10, 0)]
    assert rates(samples, 5)[-1] == (5, 2, 4)
