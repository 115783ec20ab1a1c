"""Java's notations: regular expressions and replacements, date patterns, and values as Java prints them."""

from __future__ import annotations

import datetime as dt
import math
import re
import warnings
from decimal import Decimal
from typing import Any, Final

from parley.pipeline.connect.data import Struct
from parley.pipeline.connect.errors import ConfigError, DataError

_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[a-zA-Z])")
_REPLACEMENT: Final = re.compile(r"\\(.)|\$(\d+)|\$\{(\w+)\}|([^\\$]+)|(.)", re.DOTALL)


def java_pattern(text: str, key: str) -> re.Pattern[str]:
    """Return a regular expression of Java's, compiled by Python. Raises ConfigError, which names ``key``, if it is
    invalid.
    """
    try:
        with warnings.catch_warnings(action="error", category=FutureWarning):  # [a-z&&[^b]] means something else here
            return re.compile(_NAMED_GROUP.sub("(?P<", text))
    except (re.error, FutureWarning) as error:
        raise ConfigError(f"Invalid value {text} for configuration {key}: Invalid regex: {error}") from None


def java_regex(name: str, value: Any) -> None:
    """Raise ConfigError if the value is not a regular expression. This is a validator of configuration keys."""
    java_pattern(value, name)


def java_replacement(text: str) -> str:
    r"""Convert Java's notation for a replacement (``$1``, ``${name}``) to Python's (``\g<1>``, ``\g<name>``)."""
    made = []
    for escaped, number, name, plain, odd in _REPLACEMENT.findall(text):
        if number or name:
            made.append(rf"\g<{number or name}>")
        else:
            made.append((escaped or plain or odd).replace("\\", "\\\\"))
    return "".join(made)


_WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([a-zA-Z])\2*|[^a-zA-Z']+")
_LETTERS: Final = frozenset("yuMdHhkKmsSEaDXxZz")
_ZONE: Final = re.compile(r"Z|UTC|GMT|([+-])(\d{2}):?(\d{2})?")


class JavaDateFormat:
    """A pattern of Java's ``SimpleDateFormat``, with English names, in UTC unless the text has a zone.

    Raises ConfigError for unsupported letters (weeks, eras).
    """

    def __init__(self, pattern: str) -> None:
        self._pieces: list[tuple[str, str]] = []  # a letter and its run, or "" and plain text
        for found in _TOKEN.finditer(pattern):
            quoted, letter = found[1], found[2]
            if quoted is not None:
                self._pieces.append(("", quoted.replace("''", "'") if quoted else "'"))
            elif letter is None:
                self._pieces.append(("", found[0]))
            elif letter not in _LETTERS:
                raise ConfigError(f"Invalid date pattern {pattern!r}: the letter {letter} is not supported.")
            else:
                self._pieces.append((letter, found[0]))
        self._reading = re.compile("".join(_reading(letter, run, at) for at, (letter, run) in enumerate(self._pieces)))
        self.pattern = pattern

    def format(self, moment: dt.datetime) -> str:
        """Return a time as text, converted to UTC."""
        utc = moment.astimezone(dt.UTC)
        return "".join(_shown(letter, run, utc) if letter else run for letter, run in self._pieces)

    def parse(self, text: str) -> dt.datetime:
        """Parse a text, and return the time in UTC. Raises DataError if the text does not match the pattern."""
        found = self._reading.match(text)
        if found is None:
            raise DataError(f"Could not parse timestamp: value ({text}) does not match pattern ({self.pattern})")
        parts = {letter: found[f"p{at}"] for at, (letter, _) in enumerate(self._pieces) if letter}
        try:
            return _moment(parts)
        except ValueError as error:
            raise DataError(f"Could not parse timestamp: value ({text}): {error}") from None


def _shown(letter: str, run: str, utc: dt.datetime) -> str:
    width = len(run)
    match letter:
        case "y" | "u":
            return f"{utc.year % 100:02}" if width == 2 else f"{utc.year:0{width}}"
        case "M" if width >= 3:
            return _MONTHS[utc.month - 1] if width > 3 else _MONTHS[utc.month - 1][:3]
        case "E":
            return _WEEKDAYS[utc.weekday()] if width > 3 else _WEEKDAYS[utc.weekday()][:3]
        case "a":
            return "AM" if utc.hour < 12 else "PM"
        case "X" | "x":
            return "Z" if letter == "X" else {1: "+00", 2: "+0000"}.get(width, "+00:00")
        case "Z":
            return "+0000"
        case "z":
            return "UTC"
    numbers = {
        "M": utc.month,
        "d": utc.day,
        "D": utc.timetuple().tm_yday,
        "H": utc.hour,
        "k": utc.hour or 24,
        "h": utc.hour % 12 or 12,
        "K": utc.hour % 12,
        "m": utc.minute,
        "s": utc.second,
        "S": utc.microsecond // 1000,
    }
    return f"{numbers[letter]:0{width}}"


def _reading(letter: str, run: str, at: int) -> str:
    """Return the regular expression that matches a piece of the pattern: ``letter`` repeated as ``run``, or plain text.
    ``at`` is its number.
    """
    if not letter:
        return re.escape(run)
    if letter == "E" or (letter == "M" and len(run) >= 3):
        return f"(?P<p{at}>[A-Za-z]{{1,10}})"
    if letter == "a":
        return f"(?P<p{at}>[AaPp][Mm])"
    if letter in "XxZz":
        return rf"(?P<p{at}>Z|UTC|GMT|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)"
    return f"(?P<p{at}>[0-9]{{{len(run)}}})" if len(run) > 1 else f"(?P<p{at}>[0-9]{{1,10}})"


def _moment(parts: dict[str, str]) -> dt.datetime:
    """Return the time that these parts describe, by the pattern's letters. Raises ValueError."""
    year = parts.get("y") or parts.get("u") or "1970"
    hour = int(parts.get("H") or parts.get("k") or parts.get("h") or parts.get("K") or 0)
    if parts.keys() & {"h", "K"}:
        hour = hour % 12 + 12 * (parts.get("a", "AM").upper() == "PM")
    moment = dt.datetime(
        int(year) + 2000 * (len(year) == 2),
        _month(parts.get("M", "1")),
        int(parts.get("d", "1")),
        hour % 24,
        int(parts.get("m", "0")),
        int(parts.get("s", "0")),
        tzinfo=dt.UTC,
    )
    moment += dt.timedelta(milliseconds=int(parts.get("S", "0")))
    if "D" in parts:
        moment += dt.timedelta(days=int(parts["D"]) - 1)
    zone = next((parts[letter] for letter in "XxZz" if letter in parts), "Z")
    return moment - _offset(zone)


def _month(text: str) -> int:
    if text.isdecimal():
        return int(text)
    names = [name.lower() for name in _MONTHS]
    for at, name in enumerate(names):
        if text.lower() in (name, name[:3]):
            return at + 1
    raise ValueError(f"{text} is not a month")


def _offset(zone: str) -> dt.timedelta:
    found = _ZONE.fullmatch(zone)
    if found is None or not found[1]:
        return dt.timedelta()
    offset = dt.timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
    return -offset if found[1] == "-" else offset


def java_text(value: Any) -> str:
    """Return a value as Java prints it (``{a=1, b=[x, null]}``, ``Struct{a=1}``). Bytes are decoded as text."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return _java_float(value)
        case bytes():
            return value.decode(errors="replace")
        case dict():
            return "{" + ", ".join(f"{java_text(key)}={java_text(one)}" for key, one in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(java_text, value)) + "]"
        case Struct():
            there = ((name, one) for name, one in value.items() if one is not None)
            return "Struct{" + ",".join(f"{name}={java_text(one)}" for name, one in there) + "}"
        case _:
            return str(value)


def _java_float(number: float) -> str:
    if number != number or number in (math.inf, -math.inf):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, "NaN")
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    mantissa, _, exponent = f"{Decimal(repr(number)).normalize():E}".partition("E")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
