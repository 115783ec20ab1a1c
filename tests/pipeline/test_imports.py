"""A program that does not use the pipeline does not import its libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = ("pyspark", "pandas", "pyarrow", "numpy")

_PROGRAM = """
import importlib, pkgutil, sys

for name in sys.argv[2:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith(("__main__", "_pb2")):
            importlib.import_module(module.name)
loaded = [name for name in sys.argv[1].split(",") if name in sys.modules]
sys.exit(f"loaded: {loaded}" if loaded else 0)
"""


def _imported(heavy: tuple[str, ...], *packages: str) -> str:
    command = [sys.executable, "-c", _PROGRAM, ",".join(heavy), *packages]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stderr


@pytest.mark.slow
def test_no_other_package_imports_spark() -> None:
    assert (
        _imported(
            ("pyspark",), "parley.protocol", "parley.storage", "parley.consensus", "parley.broker", "parley.tools"
        )
        == ""
    )


def test_the_package_itself_imports_nothing_heavy() -> None:
    program = f"import parley.pipeline, sys; sys.exit(str([name for name in {_HEAVY} if name in sys.modules] or ''))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).stderr.strip() == b""
