"""The manual pages: there is one per command, and mandoc and man accept them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from parley.tools.cli import COMMANDS
from parley.tools.cli.manual import FOLDER, manual_pages

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_each_command_has_a_page_with_its_options_and_examples() -> None:
    pages = manual_pages()
    assert set(pages) == {f"{FOLDER}/parley.1", *(f"{FOLDER}/parley-{name}.1" for name in COMMANDS)}
    for name in COMMANDS:
        page = pages[f"{FOLDER}/parley-{name}.1"]
        assert all(f".SH {part}\n" in page for part in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES")), name
        assert r"\-\-help" in page
    assert r"\fB\-\-output \fI<json|yaml|table>\fB\fR" in pages[f"{FOLDER}/parley-topics.1"]


@pytest.mark.slow
def test_the_pages_are_up_to_date() -> None:
    """Also: no page is left from a command that is gone."""
    written = {f"{FOLDER}/{path.name}": path.read_text() for path in (ROOT / FOLDER).iterdir()}
    assert written == manual_pages(), "run `parley docs`"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_finds_nothing_wrong() -> None:
    pages = sorted((ROOT / FOLDER).glob("*.1"))
    done = subprocess.run(["mandoc", "-Tlint", "-W", "warning", *pages], capture_output=True, text=True, check=False)
    # The pages have a version instead of a date: they do not change from day to day.
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_shows_a_page() -> None:
    page = ROOT / FOLDER / "parley-topics.1"
    done = subprocess.run(["man", "--warnings", "-l", str(page)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "--replication-factor <int>" in done.stdout
    assert "parley topics --create --topic greetings" in done.stdout
