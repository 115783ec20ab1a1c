"""``--master``: a mirror on a standalone Spark cluster: a master and a worker on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.tools.cli.json_shapes import SHAPES, differences
from tests.pipeline.mirror.clusters import as_rows, create, produce, read, rows
from tests.pipeline.standalone_spark import SETTINGS, standalone_spark

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of a standalone Spark cluster with one worker."""
    with standalone_spark(tmp_path, monkeypatch) as address:
        yield address


def test_a_mirror_runs_on_any_spark(a: str, b: str, master: str) -> None:
    create(a, "orders", 3)
    for partition in range(3):
        produce(a, "orders", rows(500), partition)
    words = ["mirror", "--source", a, "--target", b, "--source-alias", "A", "--topics", "orders", "--once", "--json"]
    words += ["--master", master, *(word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}"))]
    done = subprocess.run([sys.executable, "-m", "parley", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [problem for one in told for problem in differences(one, SHAPES["mirror"][1])] == []
    assert (told[-1]["flow"], told[-1]["records"], told[-1]["lag"]) == ("A->target", 1500, 0)
    for partition in range(3):
        assert as_rows(read(b, "A.orders", partition)) == rows(500)
