"""``make pipeline`` with few records, as a user runs it: with a kill while it runs, and a plot at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.tools.pipeline_demo import _from_log, main
from tests.support.java_archives import small_spark

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]


def test_make_pipeline_with_a_kill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    commits = "".join(f"@{n:040} {1_700_000_000 + 60 * n}\n\n1\t0\tdocs/{n}.md\n2\t1\t{n}.py\n" for n in range(60))
    monkeypatch.setattr("parley.tools.pipeline_demo._changes", lambda: list(_from_log(commits)))
    monkeypatch.setattr("parley.tools.pipeline_demo.FEED_S", 2.0)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", small_spark())  # it is started twice
    monkeypatch.setattr("signal.signal", lambda *_: None)  # that of the tests stays
    picture = tmp_path / "picture.png"
    assert main(["--plot", str(picture), "--master", "local[2]"]) == 0
    told = capfd.readouterr().out
    assert "kill -9" in told
    assert "docs                            60                60" in told
    assert "The totals agree" in told
    assert picture.read_bytes().startswith(b"\x89PNG")
