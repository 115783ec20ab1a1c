"""How the embedded store is protected: by the permissions of its directory."""

from __future__ import annotations

import stat
from pathlib import Path

from parley.consensus.protection import Finding, Guard, Protection


def protection_of(directory: Path) -> Protection:
    """Return how the store in a directory is protected. Blocks. Raises OSError."""
    connection = Finding(Guard.CLOSED, "there is no connection: processes share files")
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & 0o077:
        return Protection(Finding(Guard.CLOSED, f"only the owner of {directory} can open it"), connection)
    text = f"{directory} has the mode {mode:o}: other users of this machine can open it"
    return Protection(Finding(Guard.OPEN, text, f"chmod -R go-rwx {directory}"), connection)
