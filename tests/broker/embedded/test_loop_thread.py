"""An event loop in a thread reports the errors of its beginning and its end to the program."""

from __future__ import annotations

import pytest

from parley.broker.embedded.loop_thread import LoopThread


async def nothing() -> None:
    pass


async def fails() -> None:
    raise OSError("the disk is full")


def test_an_error_of_the_beginning_is_raised_by_start() -> None:
    with pytest.raises(OSError, match="full"):
        LoopThread("t", fails, nothing).start()


def test_an_error_of_the_end_is_raised_by_stop() -> None:
    thread = LoopThread("t", nothing, fails)
    thread.start()
    with pytest.raises(OSError, match="full"):
        thread.stop()
