"""Waiting for work in threads, which is never left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

PROGRESS_SECONDS = 10.0


async def ended(futures: Sequence[asyncio.Future[Any]], report: Callable[[], None] = lambda: None) -> None:
    """Wait until all are done, through any cancellation, which is raised then; ``report`` while it takes long."""
    cancelled = None
    pending = set(futures)
    while pending:
        try:
            _, pending = await asyncio.wait(pending, timeout=PROGRESS_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
        if pending:
            report()
    if cancelled is not None:
        raise cancelled
