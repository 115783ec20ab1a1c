"""A progress bar for measurements, shown on a terminal only."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import Final

DRAW_MS: Final = 200
"""The minimum interval between two drawings of the bar, in milliseconds."""
_WIDTH: Final = 30


def on_terminal() -> bool:
    """Return True if standard output and standard error are both terminals, so that no bar is written to a file."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def bar(done: int, total: int, rates: str, columns: int) -> str:
    """Format the bar, the percentage and the rates in a line of fewer than ``columns`` characters."""
    share = min(1.0, done / total) if total else 1.0
    filled = int(share * _WIDTH)
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%} {done} of {total}, {rates}"[: max(1, columns - 1)]


@dataclass(slots=True)
class Progress:
    """A progress bar on the terminal, redrawn at intervals. Times are in seconds."""

    total: int
    is_shown: bool
    drawn_at: float = 0.0

    def update(self, now: float, done: int, rates: str) -> None:
        """Draw the bar, unless it was drawn less than an interval ago."""
        if self.is_shown and (now - self.drawn_at) * 1000 >= DRAW_MS:
            self.drawn_at = now
            columns = shutil.get_terminal_size().columns
            print(f"\r\x1b[K{bar(done, self.total, rates, columns)}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Erase the bar."""
        if self.is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
