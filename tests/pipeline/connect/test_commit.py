"""The commit that a clone has checked out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from parley.pipeline.connect.source_commit import UNKNOWN, commit_of


def git(root: Path, *words: str) -> str:
    settings = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *settings, *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("then", [(), ("pack-refs", "--all"), ("checkout", "-q", "--detach")])
def test_a_clone_tells_its_commit(tmp_path: Path, then: tuple[str, ...]) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "-q")
    assert commit_of(clone) == UNKNOWN
    git(clone, "commit", "-q", "--allow-empty", "-m", "first")
    if then:
        git(clone, *then)
    assert commit_of(clone) == git(clone, "rev-parse", "HEAD")[:16]
    git(clone, "worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    assert commit_of(tmp_path / "other") == commit_of(clone)


def test_the_commit_of_a_folder_that_is_not_a_clone_is_unknown(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == UNKNOWN
