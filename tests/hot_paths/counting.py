"""Counts the work of Python code: its bytecode instructions, and the functions written in C that it calls.

No clock is involved: the same code does the same work on every machine. One number, ``WORK_PER_CALL`` instructions for
each call of a C function, is enough to notice wasteful code. The counts depend on Python's version, and not on how busy
the machine is. Work in other threads, in the kernel and inside C functions is not counted.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WORK_PER_CALL = 5
"""What a call of a C function counts, in instructions. It costs about as much as this many simple ones."""
UNCOUNTED = (str(Path(asyncio.__file__).parent), selectors.__file__, str(Path(__file__).parent))
"""Code whose work does not count: the event loop, which is another one in production, and the client."""


class Counter:
    """Counts the work of this thread while it is active (``with``)."""

    def __init__(self) -> None:
        self.work = 0
        """The work so far."""
        self._counted: dict[CodeType, bool] = {}

    def __enter__(self) -> Counter:
        def instruction(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            self.work += 1
            return instruction

        def entered(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
            if not self._counts(frame.f_code):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return instruction

        def called(frame: FrameType, event: str, argument: Any) -> None:
            if event == "c_call" and self._counts(frame.f_code):
                self.work += WORK_PER_CALL

        sys.setprofile(called)
        sys.settrace(entered)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def _counts(self, code: CodeType) -> bool:
        found = self._counted.get(code)
        if found is None:
            found = self._counted[code] = not code.co_filename.startswith(UNCOUNTED)
        return found
