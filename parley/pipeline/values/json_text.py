"""Reads and writes JSON more strictly than Python's own module: rejects NaN and infinity, and writes all digits of a
decimal."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

_MARK: Final = "\0parley.decimal\0"
"""The mark around the digits of a decimal until the text is complete."""
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


def packed(value: Any) -> bytes:
    """Return a value as JSON without white space, in UTF-8. Raises TypeError or ValueError if the value has no JSON
    form.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class NotFinite(ValueError):
    """Raised if a text contains a number that JSON or a double cannot represent: NaN, Infinity, -Infinity or 1e400."""


def loads(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError; NotFinite if a number is not finite."""
    return json.loads(text, parse_float=finite, parse_constant=_no_constant)


def finite(text: str) -> float:
    """Return the double nearest to a number in JSON. Raises NotFinite for 1e400, which would be infinity."""
    number = float(text)
    if math.isinf(number):
        raise NotFinite("a number is too large for a double")
    return number


def _no_constant(name: str) -> None:
    raise NotFinite(f"{name} is not JSON")
