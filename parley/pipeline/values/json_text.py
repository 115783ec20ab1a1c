"""Writes JSON in which decimals are numbers with all their digits, which Python's own module cannot do."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

_MARK: Final = "\0parley.decimal\0"
"""Marks the digits of a decimal until the text is complete."""
_MARKED: Final = re.compile(json.dumps(_MARK)[:-1].replace("\\", "\\\\") + r'(-?\d+(?:\.\d+)?(?:E[+-]\d+)?)"')
_PLAIN_MAX: Final = 1000
"""The maximum number of digits of a number without an exponent: 1E+999999999 would take a gigabyte."""


def dumps(value: Any, *, separators: tuple[str, str] | None = None) -> str:
    """Return a value as JSON. Raises TypeError or ValueError if the value has no JSON form."""
    has_decimals = False

    def marked(one: Any) -> str:
        nonlocal has_decimals
        if not isinstance(one, Decimal) or not one.is_finite():
            raise TypeError(f"{one!r} is not a JSON value")
        has_decimals = True
        digits = f"{one:f}" if abs(one.adjusted()) <= _PLAIN_MAX else str(one)
        return f"{_MARK}{digits}"

    text = json.dumps(value, separators=separators, ensure_ascii=False, default=marked)
    return _MARKED.sub(r"\1", text) if has_decimals else text


def finite(text: str) -> float:
    """Return the double nearest to a number in JSON. Raises ValueError for 1e400, which would be infinity."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large for a double")
    return number
