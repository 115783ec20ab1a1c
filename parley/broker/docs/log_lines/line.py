"""A line of the log, with its meaning for the operator."""

from __future__ import annotations

from typing import Final

from parley.light_dataclasses import dataclass

NOTHING: Final = "Nothing."
DEFECT: Final = "A defect in Parley: please report it with the traceback."


@dataclass(frozen=True, slots=True)
class Line:
    """A line at level warning or error. In ``event``, "..." takes the place of values."""

    event: str
    meaning: str
    action: str


@dataclass(frozen=True, slots=True)
class Section:
    """Lines about one subject."""

    title: str
    lines: tuple[Line, ...]
