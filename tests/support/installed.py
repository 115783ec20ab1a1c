"""Parley as users install it: the distributions that ``make dist`` builds, in separate environments."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {"parley", "pyspark_parley"}
"""The top-level names that Parley adds to a user's environment."""
QUIET = ("-q", "--no-deps", "--disable-pip-version-check")


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
    run = subprocess.run(words, cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def built() -> Path:
    """Return a folder like the one that ``make dist`` fills. The wheel is built from the source distribution.

    It is kept until a source file changes: building takes half a minute, and the tests with Spark use the same folder.
    The C compiler does not optimize, which would take as long as everything else.
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
            build = ("-m", "build", "--no-isolation", "--outdir", str(made), str(ROOT))
            done(sys.executable, *build, MYPYC_OPT_LEVEL="0")
            made.rename(folder)
    return folder


def _digest_of_sources() -> str:
    """Return the digest of everything that a build may read, excluding tests and documentation pages."""
    found = hashlib.sha256(sys.version.encode())
    for path in sorted(
        [
            *ROOT.glob("*"),
            *(ROOT / "docs" / "man").glob("*"),
            *(file for name in TOP_LEVEL for file in (ROOT / name).rglob("*")),
        ]
    ):
        # Other processes write bytecode meanwhile, first under names that do not end in .pyc.
        if "__pycache__" in path.parts or path.suffix == ".so" or path.name == "_built.json":
            continue
        if path.is_file():
            found.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]
