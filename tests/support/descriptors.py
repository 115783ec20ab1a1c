"""The file descriptors of a test process: which are open, and how many more it may open."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open only ``count`` more files, and as many as it closes.

    The limit applies to all threads. Call this in a separate process (``tests/support/own_process.py``): a thread of
    another test could otherwise take a descriptor, and lacks them itself.
    """
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


def open_descriptors(prefix: str) -> int:
    """Count the descriptors of this process whose target begins with ``prefix``: a path, or ``socket:[...``.

    A count of all descriptors would include those of servers that other tests keep running in this process.
    """
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(_target(link).startswith(prefix) for link in links)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return ""
