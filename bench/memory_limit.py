"""Limits the memory of a process, including the page cache of its files, with a control group (version 1 or 2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class NoLimits(Exception):
    """Raised if this user cannot create control groups with a memory limit."""


@contextmanager
def limited_to(megabytes: int) -> Iterator[Path]:
    """Create a control group, and yield the file to which the caller writes the ids of its processes. Raises
    ``NoLimits`` if the group or its limit cannot be created.

    These processes must have ended when the block ends.
    """
    is_old = (_ROOT / "memory").is_dir()
    group = (_ROOT / "memory" if is_old else _ROOT) / f"parley-bench-{os.getpid()}"
    limit = "memory.limit_in_bytes" if is_old else "memory.max"
    try:
        if not is_old:
            (_ROOT / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
    except OSError as error:
        raise NoLimits(f"no control group can be created: {error}") from error
    try:
        try:
            (group / limit).write_text(str(megabytes << 20))
        except OSError as error:
            raise NoLimits(f"no memory limit can be set: {error}") from error
        yield group / "cgroup.procs"
    finally:
        group.rmdir()
