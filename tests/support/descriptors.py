"""A test process that can open no more files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open only ``count`` more files, and as many as it closes."""
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(count + 1)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(opened), before[1]))  # all numbers below the last one may be used
    for fd in opened[:-1]:
        os.close(fd)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        os.close(opened[-1])
