"""The programs of docs/pipeline.md run unchanged in this process's Spark session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
# test_sessions.py runs those that begin with the name of a file.
PROGRAMS = re.findall(r"^```python\n(?!# )(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("program", PROGRAMS, ids=range(1, len(PROGRAMS) + 1))
def test_programs(program: str, spark: SparkSession) -> None:
    exec(compile(program, "docs/pipeline.md", "exec"), {"__name__": "__main__"})
