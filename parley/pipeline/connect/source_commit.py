"""The commit that this program was built from, if it runs from a clone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

UNKNOWN: Final = "unknown"
_DIGITS: Final = 16
"""The number of digits that Kafka shows."""
_ID: Final = re.compile(r"[0-9a-f]{40,64}")


def commit_of(root: Path) -> str:
    """Return the first digits of the commit that is checked out in the clone at ``root``; ``UNKNOWN`` if that is not a
    clone.
    """
    git = root / ".git"
    try:
        if git.is_file():  # another work tree of a clone
            git = root / git.read_text().removeprefix("gitdir:").strip()
        common = git / "commondir"
        shared = git / common.read_text().strip() if common.is_file() else git
        head = (git / "HEAD").read_text().strip()
        branch = head.removeprefix("ref: ")
        found = head if branch == head else _id_of(shared, branch)
    except (OSError, UnicodeDecodeError):
        return UNKNOWN
    return found[:_DIGITS] if _ID.fullmatch(found) else UNKNOWN


def _id_of(git: Path, branch: str) -> str:
    """Return the commit of a branch; "" if the repository has none. Raises OSError."""
    if (git / branch).is_file():
        return (git / branch).read_text().strip()
    packed = (git / "packed-refs").read_text().splitlines()
    return next((line.split(" ")[0] for line in packed if line.endswith(f" {branch}")), "")
