"""Files at the top of the repository agree with the project they describe."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from parley.tools.simulation.faults import Kind

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
USERS_EXTRAS = PROJECT["optional-dependencies"].keys() - {"test", "lint", "fuzz", "dist", "site", "mutants"}


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", each)[0] for each in requirements} - {"parley-broker"}


def test_the_page_on_dependencies_names_each_of_them() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    extras = PROJECT["optional-dependencies"]
    needed = _names(PROJECT["dependencies"]).union(*(_names(extras[extra]) for extra in USERS_EXTRAS))
    assert {name for name in needed if f"`{name}`" not in page} == set()


def test_every_dependency_has_a_bound() -> None:
    extras = PROJECT["optional-dependencies"].values()
    everything = [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]
    assert [each for each in everything if not each.startswith("parley-broker[") and "=" not in each] == []


def test_the_workflow_runs_the_same_checks_on_every_supported_python() -> None:
    (job,) = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"].values()
    assert {"run": "bash .ci/run"} in job["steps"]
    supported = {each.rsplit(" ", 1)[1] for each in PROJECT["classifiers"] if "Python :: 3." in each}
    assert supported <= set(job["strategy"]["matrix"]["python"])


def test_pre_commit_hooks_run_programs_that_ci_runs() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    programs = {hook["entry"].split()[0] for hook in local["hooks"]}
    assert programs == {".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/lint-imports", ".venv/bin/parley"}


def test_each_guarantee_names_tests_and_faults_that_exist() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page))
    sources = {path: (ROOT / path).read_text() if (ROOT / path).exists() else "" for path, _ in named}
    assert len(named) > 20
    assert {each for each in named if f"def {each[1] or 'test_'}" not in sources[each[0]]} == set()
    drawn = re.findall(r"--faults (?:\"([^\"]+)\"|(\w+))", page)
    assert {"".join(each) for each in drawn} <= {kind.value for kind in Kind} | {"X"}


def _notes(version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / ".ci" / "release-notes", version], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_release_notes_are_a_section_of_the_changelog() -> None:
    notes = _notes("Unreleased").stdout
    assert notes.startswith("### ")
    assert notes.strip() in (ROOT / "CHANGELOG.md").read_text()
    assert "\n## " not in notes


@pytest.mark.parametrize("version", ["99.0.0", "Unreleas"])
def test_a_version_without_a_section_has_no_notes(version: str) -> None:
    done = _notes(version)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no section for {version}" in done.stderr
