"""Format a record as one line for display: time, place, key, value, headers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from parley.tools.cli.colors import of_partition


def line(message: Any, *, with_topic: bool) -> bytes:
    """Format a record, with a newline at the end. ``with_topic`` puts the topic before the partition."""
    place = f"{message.partition()}:{message.offset()}"
    if with_topic:
        place = f"{message.topic()}-{place}"
    key = message.key()
    parts = [
        of_partition(f"{_time(message.timestamp()[1])}  {place}", message.partition()),
        "-" if key is None else printable(key),
        "null" if message.value() is None else printable(message.value()),
    ]
    if headers := message.headers():
        named = (f"{name}={'null' if data is None else printable(data)}" for name, data in headers)
        parts.append(f"[{', '.join(named)}]")
    return ("  ".join(parts) + "\n").encode(errors="replace")


def printable(data: bytes) -> str:
    """Decode text. Invalid UTF-8, newlines and control characters are escaped as in Python."""
    text = data.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "-" * 23
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError):  # beyond the year 9999
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}"
