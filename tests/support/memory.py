"""The system's memory for files, as tests need it."""

from __future__ import annotations

import os
from typing import Any

import pytest


def nothing_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that must not wait for the disk find nothing from now on, as after a start of the machine."""
    real = os.preadv

    def cold(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", cold)
