"""How far a measurement is: a bar that is drawn again and again on a terminal, nothing elsewhere."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import Final

DRAW_MS: Final = 200
"""How often a bar is drawn."""
_WIDTH: Final = 30


def on_terminal() -> bool:
    """Whether a person watches: both streams go to a terminal, so that a bar does not get into what is kept."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def bar(done: int, total: int, rates: str, columns: int) -> str:
    """One line of at most ``columns`` characters: a bar, the share and the rates."""
    share = min(1.0, done / total) if total else 1.0
    filled = int(share * _WIDTH)
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%} {done} of {total}, {rates}"[: max(1, columns - 1)]


@dataclass(slots=True)
class Progress:
    """Draws the bar when it is due; times in s."""

    total: int
    is_shown: bool
    drawn_at: float = 0.0

    def update(self, now: float, done: int, rates: str) -> None:
        """Draw, unless it has just been done."""
        if self.is_shown and (now - self.drawn_at) * 1000 >= DRAW_MS:
            self.drawn_at = now
            columns = shutil.get_terminal_size().columns
            print(f"\r\x1b[K{bar(done, self.total, rates, columns)}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the bar away, so that the results stand alone."""
        if self.is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
