"""Tests import a mutant that only an import can plant, and a test that fails without a mutant is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.mutation.mutants import ROOT

_TRIES = """
from pathlib import Path
from tests.mutation.mutants import Mutant
from tests.mutation.trials import Program, _trial_of_import, judge

path = Path("parley/consensus/keys.py")
for change in ("", "check_key = print"):
    mutant = Mutant(path, "appended", 1, path.read_text() + change, "", change)
    trial = _trial_of_import(mutant, ["tests/consensus/test_keys.py"], Program({}, {}, frozenset()))
    print([is_killed for _, is_killed in judge([trial], 1)])
"""


def test_the_tests_import_the_mutant() -> None:
    tried = subprocess.run([sys.executable, "-c", _TRIES], cwd=ROOT, capture_output=True, text=True, check=True)
    assert tried.stdout.split() == ["[False]", "[True]"]


def test_a_test_that_fails_without_a_mutant_is_named(tmp_path: Path) -> None:
    test = tmp_path / "test_sum.py"
    test.write_text("def test_good():\n    pass\n\n\ndef test_bad():\n    raise AssertionError\n")
    tests = ["tests/consensus/test_keys.py", str(test)]
    tries = f"from tests.mutation.trials import try_all; list(try_all({tests}, [], 1))"
    tried = subprocess.run([sys.executable, "-c", tries], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (tried.returncode, tried.stderr.strip()) == (1, "Error: this test fails without a mutant: ::test_bad")
