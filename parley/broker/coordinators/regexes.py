"""Regular expressions of clients, in the syntax of RE2, which Kafka uses, too.

RE2 matches in time that is linear in the text, whatever the expression. It does not hold the interpreter's lock, so
another thread can match while the event loop goes on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from parley.protocol.errors import ErrorCode, KafkaError

REGEX_MAX: Final = 2_048
"""The most characters of an expression."""

REGEX_MEMORY_MAX: Final = 1 << 16
"""The most bytes that RE2 may take for an expression. A larger program is refused as invalid: it would be slow, too."""

COMPILED_MAX: Final = 64
"""The most expressions that are kept compiled."""


def _engine() -> Any:
    """Return the module of RE2. Raises UNKNOWN_SERVER_ERROR if it is not installed."""
    try:
        import re2
    except ImportError as error:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"The broker cannot match regular expressions: install the package google-re2 there ({error}).",
        ) from error
    return re2


@lru_cache(COMPILED_MAX)
def compiled(regex: str, named: str) -> Any:
    """Return a compiled expression. ``named`` is the field of the request that has it, for the messages.

    Raises INVALID_REGULAR_EXPRESSION, and UNKNOWN_SERVER_ERROR without RE2.
    """
    re2 = _engine()
    if len(regex) > REGEX_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{named} has {len(regex)} characters; at most {REGEX_MAX} are allowed.",
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = REGEX_MEMORY_MAX
    try:
        return re2.compile(regex, options=options)
    except re2.error as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{named} `{regex}` is not a valid regular expression: {reason_of(error)}.",
        ) from error


def reason_of(error: Exception) -> str:
    """Return why RE2 refuses an expression, from its ``re2.error``. The library has the reason as bytes."""
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)
