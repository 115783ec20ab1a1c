"""Numbers with their nouns, for sentences: "1 partition", "2 partitions"."""

from __future__ import annotations


def plural(count: int, noun: str, several: str = "") -> str:
    """Return the count with its noun: "1 partition", "2 partitions". ``several`` is the plural if it is irregular."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {several or noun + 's'}"
