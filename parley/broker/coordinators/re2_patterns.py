"""Regular expressions from clients, in the syntax of RE2, as in Kafka.

RE2 matches any expression in a time that is linear in the length of the text. It releases the interpreter's lock, so a
thread can match while the event loop keeps running.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from parley.protocol.errors import ErrorCode, KafkaError

REGEX_MAX: Final = 2_048
"""The maximum length of an expression, in characters."""

REGEX_MEMORY_MAX: Final = 1 << 16
"""The maximum memory that RE2 may use for an expression, in bytes. An expression that needs more is rejected as
invalid, because it would also be slow."""

COMPILED_MAX: Final = 64
"""The number of compiled expressions to cache."""


def _engine() -> Any:
    """Return the ``re2`` module. Raises UNKNOWN_SERVER_ERROR if it is not installed."""
    try:
        import re2
    except ImportError as error:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"The broker cannot match regular expressions. Install the package google-re2 on it ({error}).",
        ) from error
    return re2


@lru_cache(COMPILED_MAX)
def compiled(regex: str, named: str) -> Any:
    """Return a compiled expression, from a cache if possible. ``named`` is the name of its field in the request, for
    error messages.

    Raises INVALID_REGULAR_EXPRESSION, or UNKNOWN_SERVER_ERROR if RE2 is not installed.
    """
    re2 = _engine()
    if len(regex) > REGEX_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{named} is {len(regex)} characters long. The maximum is {REGEX_MAX}.",
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = REGEX_MEMORY_MAX
    options.never_capture = True  # 900 nested groups that capture make a match 10,000 times slower.
    try:
        return re2.compile(regex, options=options)
    except re2.error as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{named} `{regex}` is not a valid regular expression: {reason_of(error)}.",
        ) from error


def reason_of(error: Exception) -> str:
    """Return why RE2 rejected an expression. ``error`` is its ``re2.error``, which contains the reason as bytes."""
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)
