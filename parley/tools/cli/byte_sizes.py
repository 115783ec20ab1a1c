"""Format numbers of bytes for display."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(count: int) -> str:
    """Format a number of bytes in the largest unit that gives a value of at least 1, such as ``1.5 MiB``."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} B"
