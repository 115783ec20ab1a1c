"""Logs unexpected errors at a limited rate, which clients cannot increase.

A client that finds a request on which a handler raises could send it at any rate, and each traceback takes kilobytes.
The first failure of a kind (identified by what failed and the line that raised) is therefore logged with its traceback,
and further failures only after ``INTERVAL_S``, with the number of failures that were not logged. A shortage of file
descriptors or memory is not a defect of the code in which it occurs: it is reported to the broker, and logged without a
traceback.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from parley.storage.resource_exhaustion import note_lost_work

_log = logging.getLogger(__name__)

INTERVAL_S = 60.0
_KINDS_MAX = 1000
_Kind = tuple[str, str, int]


class FailureLog:
    """Logs the failures of one part of a broker at a limited rate."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        # When the last failure of a kind was logged, and how many have not been logged since.
        self._seen: dict[_Kind, list[float]] = {}

    def report(self, what: str, error: BaseException, now_s: float, **facts: object) -> None:
        """Log the event ``what`` with ``error`` and ``facts``, unless a failure of the same kind was logged in the last
        ``INTERVAL_S``. ``now_s`` is the current monotonic time."""
        is_shortage = note_lost_work(error)
        kind = (what, *_place(error))
        seen = self._seen.get(kind)
        if seen is not None and now_s - seen[0] < INTERVAL_S:
            seen[1] += 1
            return
        if seen is not None and seen[1]:
            facts["not_logged"] = int(seen[1])
        elif len(self._seen) >= _KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = [now_s, 0]
        if is_shortage:
            self._log.error(what, extra={"reason": str(error) or repr(error), **facts})
        else:
            self._log.error(what, exc_info=error, extra=facts)


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error in a callback of the event loop. A shortage is logged as a shortage."""
    error = context.get("exception")
    if error is None or not note_lost_work(error):
        loop.default_exception_handler(context)
        return
    facts = {"reason": repr(error), "where": context.get("message", "")}
    _log.error("a callback ended for lack of memory or file descriptors", extra=facts)


def _place(error: BaseException) -> tuple[str, int]:
    """Return the file and the line that raised the error."""
    trace = error.__traceback__
    if trace is None:
        return type(error).__name__, 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno
