"""Parley as users install it: the distributions that ``make dist`` builds, in separate environments."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {"parley", "pyspark_parley"}
"""The top-level names that Parley adds to a user's environment."""
BUILD_SECONDS = 800
"""Far more than a build takes, to distinguish a hung program from a machine that does other things besides. The tests
that call it have a higher limit."""
QUIET = ("-q", "--no-deps", "--disable-pip-version-check")
_COMPILED = re.compile(r"^compiled = \[.*?\]", re.MULTILINE | re.DOTALL)
_FEW = ("parley/protocol/records/crc.py", "parley/storage/compaction/_offset_map.py")


class Installed:
    """An environment that contains Parley, but nothing from this clone."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        done(sys.executable, "-m", "venv", "--without-pip", str(folder))
        self.python = folder / "bin" / "python"
        site = Path(done(str(self.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        done(sys.executable, "-m", "pip", "--python", str(self.python), "install", *QUIET, str(wheel))
        self.site = site
        # A path in a .pth file lends the libraries. The .pth files beside them, which lead to this clone, are not read.
        (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(self, folder: Path, *words: str) -> str:
        # As in an activated environment: Spark's workers run the python3 of the path.
        return done(str(self.python), *words, cwd=folder, PATH=f"{self.python.parent}:{os.environ['PATH']}")

    def names(self) -> set[str]:
        """Return the top-level names that can be imported because Parley is installed."""
        beside = {".dist-info", ".pth"}
        return {path.name for path in self.site.iterdir() if path.suffix not in beside} - {"__pycache__"}


def done(*words: str, cwd: Path = ROOT, **environment: str) -> str:
    """Run a program that must succeed, without this test's own environment variables. Returns its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "PARLEY"))}
    run = subprocess.run(words, cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def built() -> Path:
    """Return a folder like the one that ``make dist`` fills. The wheel is built from the source distribution.

    It is kept until a source file changes: building takes twenty seconds, and the tests with Spark use the same folder.
    Only two of the modules are compiled, without optimization: the installation of this folder has compiled all.
    """
    folder = ROOT / ".cache" / "dist" / _digest_of_sources()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for old in folder.parent.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            made = folder.with_suffix(".made")
            with tempfile.TemporaryDirectory() as copy:
                _copy_sources(Path(copy))
                project = Path(copy) / "pyproject.toml"
                text, replaced = _COMPILED.subn(f"compiled = {list(_FEW)}", project.read_text())
                assert replaced == 1
                project.write_text(text)
                build(Path(copy), made)
            made.rename(folder)
    return folder


def build(sources: Path, target: Path) -> None:
    """Build both distributions as ``make dist`` does. The C compiler does not optimize."""
    words = ("-m", "build", "--no-isolation", "--outdir", str(target), str(sources))
    done(sys.executable, *words, MYPYC_OPT_LEVEL="0")


def _copy_sources(folder: Path) -> None:
    for path in _sources():
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)


def _digest_of_sources() -> str:
    found = hashlib.sha256(f"{sys.version} {_FEW}".encode())
    for path in _sources():
        found.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _sources() -> list[Path]:
    """Return all files that a build may read: no tests and documentation pages, and nothing that a build writes."""
    found = [
        *ROOT.glob("*"),
        *(ROOT / "docs" / "man").glob("*"),
        *(file for name in TOP_LEVEL for file in (ROOT / name).rglob("*")),
    ]
    # Other processes write bytecode meanwhile, first under names that do not end in .pyc.
    written = {"__pycache__", "_built.json"}
    return sorted(path for path in found if path.is_file() and path.suffix != ".so" and not written & set(path.parts))
