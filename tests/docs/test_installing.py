"""Parley installs into somebody's own project with pip, complete, as docs/embedding.md and docs/quickstart.md say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.system]

ROOT = Path(__file__).parents[2]
PACKAGES = ("parley", "pyspark_parley")

PROGRAM = """
import sys
from pathlib import Path

import broker, consensus, protocol, storage, tools
from parley import Broker
from confluent_kafka import Producer

site = Path(sys.argv[1])
for package in (broker, consensus, protocol, storage, tools):
    assert Path(package.__file__).is_relative_to(site), package.__file__
    assert Path(package.__file__).with_name("py.typed").exists(), package.__file__
with Broker(data_dir="data") as running:
    with Producer({"bootstrap.servers": running.bootstrap_servers}) as producer:
        producer.produce("t", b"x")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Parley was installed from a copy of its sources. What it needs is taken from this environment."""
    source = tmp_path_factory.mktemp("parley")
    built = shutil.ignore_patterns("__pycache__", "*.so", "_built.json")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=built)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    target = tmp_path_factory.mktemp("site")
    words = ["-m", "pip", "install", "-q", "--no-deps", "--target", str(target), "."]
    done = subprocess.run([sys.executable, *words], cwd=source, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def _run(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_program_of_ones_own_runs(site: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = _run(site, tmp_path, "program.py", str(site))
    assert done.returncode == 0, done.stderr
    done = _run(site, tmp_path, str(site / "bin" / "parley"), "version")
    assert done.returncode == 0, done.stderr


def test_names_that_clash_are_those_the_page_warns_of(site: Path) -> None:
    """Nothing else that can be imported is put beside the user's own."""
    found = {path.name for path in site.iterdir() if path.is_dir() and not path.name.endswith(".dist-info")}
    assert found - {"bin", "__pycache__"} == set(PACKAGES)
    page = (ROOT / "docs" / "embedding.md").read_text()
    assert all(f"`{name}`" in page for name in PACKAGES)


def test_without_the_plugin_where_a_name_clashes(site: Path, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("mine = True\n")
    (tmp_path / "test_mine.py").write_text("import tools\n\ndef test_mine():\n    assert tools.mine\n")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    assert _run(site, tmp_path, *words).returncode != 0
    done = _run(site, tmp_path, *words, "-p", "no:parley")
    assert done.returncode == 0, done.stdout + done.stderr
