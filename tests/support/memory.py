"""Tests' control over the page cache."""

from __future__ import annotations

import os
from typing import Any

import pytest

from parley.storage.segment_file import SegmentFile


def nothing_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make non-blocking reads find nothing in the page cache, as after a restart of the machine."""
    real = os.preadv

    def cold(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", cold)
    monkeypatch.setattr(SegmentFile, "nowait_flag", os.RWF_NOWAIT)  # also if the file system has no such reads
