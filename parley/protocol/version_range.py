"""Ranges of versions, in the notation of the message definitions."""

from __future__ import annotations

from typing import Any, Final

_UNBOUNDED: Final = 32767  # a version is an int16


class VersionRange:
    """An inclusive range of versions, written "3-13", "3+", "3" or "none" (an empty range)."""

    __slots__ = ("max", "min")

    def __init__(self, text: str) -> None:
        low, dash, high = text.partition("-")
        if text == "none":
            self.min, self.max = 0, -1
        elif text.endswith("+"):
            self.min, self.max = int(text[:-1]), _UNBOUNDED
        else:
            self.min, self.max = int(low), int(high if dash else low)

    def __contains__(self, version: int) -> bool:
        return self.min <= version <= self.max

    def __iter__(self) -> Any:
        return iter(range(self.min, self.max + 1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VersionRange) and (self.min, self.max) == (other.min, other.max)

    def __hash__(self) -> int:
        return hash((self.min, self.max))

    def __repr__(self) -> str:
        if self.max <= self.min:
            return str(self.min) if self.max == self.min else "none"
        return f"{self.min}+" if self.max == _UNBOUNDED else f"{self.min}-{self.max}"
