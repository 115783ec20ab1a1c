"""Runs a part of a test in a separate process, because a limit of the operating system applies to a whole process.

The process is a fork, which takes milliseconds. Only the thread of the caller exists in it, so no client or server of
another test does anything there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from multiprocessing import get_context


def in_own_process(part: Callable[[], None]) -> None:
    """Run ``part`` in a separate process, and wait until it ends.

    Raises AssertionError if it raises anything. Its traceback is among the test's captured output. The caller's event
    loop must not be running.
    """
    process = get_context("fork").Process(target=_without_garbage_of_others, args=(part,), daemon=True)
    process.start()
    try:
        process.join()
        assert process.exitcode == 0, "the traceback is in the captured output"
    finally:
        process.kill()


def _without_garbage_of_others(part: Callable[[], None]) -> None:
    gc.freeze()  # the end of another test's client would wait for threads that do not exist here
    part()
