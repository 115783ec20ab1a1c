"""Objects sent to executors: they arrive, and an executor without Parley reports what to do."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from parley.pipeline.format.datasource import ParleyDataSource
from parley.pipeline.format.options import source_options
from parley.pipeline.format.source import KafkaBatchReader
from parley.pipeline.mirror.stream import MirrorSource
from parley.pipeline.spark.shipping import Shipped, missing_module

ROOT = Path(__file__).parents[2]
WITHOUT_PARLEY = (
    "import sys; sys.modules['parley'] = None\n"  # imports of it raise ModuleNotFoundError
    "import pickle; pickle.load(sys.stdin.buffer)"
)


def unpickled_without_parley(data: bytes) -> str:
    """Return the error of a process that unpickles this without Parley."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_PARLEY], input=data, capture_output=True, check=False)
    assert done.returncode == 1
    return done.stderr.decode()


def reader() -> KafkaBatchReader:
    return KafkaBatchReader(source_options({"kafka.bootstrap.servers": "a:1", "subscribe": "t"}, streaming=False))


def test_pickled_objects_arrive_unchanged() -> None:
    ends = Shipped(os.path.join)
    assert pickle.loads(cloudpickle.dumps(ends))("a", "b") == os.path.join("a", "b")
    arrived = pickle.loads(cloudpickle.dumps(reader()))
    assert type(arrived) is KafkaBatchReader
    assert vars(arrived) == vars(reader())
    assert pickle.loads(cloudpickle.dumps(ParleyDataSource({"topic": "t"}))).options == {"topic": "t"}


@pytest.mark.slow
def test_an_executor_without_parley_says_what_to_do() -> None:
    for sent in (reader(), ParleyDataSource({}), MirrorSource({}), Shipped(source_options)):
        told = missing_module(RuntimeError(unpickled_without_parley(cloudpickle.dumps(sent))))
        assert told is not None
        assert "has no module 'parley" in told
        assert sys.executable in told
        assert "spark.archives" in told


def test_other_errors_are_no_missing_modules() -> None:
    assert missing_module(RuntimeError("Job aborted: Task 0 failed")) is None
    page = "org.apache.spark.SparkException: Job aborted\n  ModuleNotFoundError: No module named 'numpy'\n\tat java"
    assert missing_module(RuntimeError(page)) == "No module named 'numpy'"


@pytest.mark.slow
def test_parley_runs_from_a_zip_without_compiled_modules(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "parley.pipeline.spark.shipping", "parley.zip"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    packed = tmp_path / "parley.zip"
    names = zipfile.ZipFile(packed).namelist()
    assert {"parley/__init__.py", "pyspark_parley/__init__.py", "parley/pipeline/client/_rows.py"} <= {*names}
    assert not any(name.endswith((".so", ".pyc")) for name in names)
    program = (
        f"import sys; sys.path.insert(0, {str(packed)!r})\n"
        "import parley.pipeline.client._rows, pyspark_parley, parley.pipeline.connect.tasks.host\n"
        "print(parley.pipeline.client._rows.__file__, pyspark_parley.DefaultSource.name())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [f"{packed}/parley/pipeline/client/_rows.py", "parley"], done.stderr
