"""The values of ``share.auto.offset.reset``, which sets where a share group starts in a partition that is new to it.

They are ``latest``, ``earliest``, and ``by_duration:`` followed by an ISO 8601 duration, as Java's ``Duration`` parses
it: the group starts at the first record that is not older (KIP-1106).
"""

from __future__ import annotations

import re
from typing import Final

LATEST: Final = "latest"
EARLIEST: Final = "earliest"
_BY_DURATION: Final = "by_duration:"

_DURATION: Final = re.compile(
    r"(?P<sign>[+-])?P(?:(?P<days>[+-]?\d{1,19})D)?"
    r"(?:T(?=[+-]?\d)(?:(?P<hours>[+-]?\d{1,19})H)?(?:(?P<minutes>[+-]?\d{1,19})M)?"
    r"(?:(?P<seconds>[+-]?\d{1,19})(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_LONG_MAX: Final = 2**63 - 1
"""The maximum number of seconds of a Java duration, and of milliseconds of an age. No record is older than that."""


def is_reset(text: str) -> bool:
    """Return True if the text is a valid value of ``share.auto.offset.reset``."""
    return text in (LATEST, EARLIEST) or age_ms(text) is not None


def age_ms(text: str) -> int | None:
    """Return the maximum age of the first record, in milliseconds; None unless the text is a valid ``by_duration:``
    value."""
    if not text.startswith(_BY_DURATION):
        return None
    return _duration_ms(text.removeprefix(_BY_DURATION))


def _duration_ms(text: str) -> int | None:
    """Return a duration in milliseconds, or None if it is malformed, negative or too long."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found[name] for name in ("days", "hours", "minutes", "seconds")):
        return None
    days, hours, minutes, seconds = (int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    fraction_ms = int((found["fraction"] or "").ljust(3, "0")[:3])
    if (found["seconds"] or "").startswith("-"):
        fraction_ms = -fraction_ms
    total_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    total_ms = (total_s * 1000 + fraction_ms) * (-1 if found["sign"] == "-" else 1)
    return min(total_ms, _LONG_MAX) if total_ms >= 0 and abs(total_s) <= _LONG_MAX else None
