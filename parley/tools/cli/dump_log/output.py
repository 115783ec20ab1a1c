"""The options of ``dump-log``, and a line of its output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parley.tools.cli.invocation import CommandError

_SEGMENT_NAME = re.compile(r"(\d{1,20})(?:\.(?:log|index|timeindex|txnindex|snapshot)(?:\..*)?|-\d+\.cut)")


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What to show; sizes are in bytes.

    ``decoder`` is a key of ``DECODERS``, such as "offsets" or "transactions", or empty. If it is empty, the classes
    ``key_class`` and ``value_class`` decode the records.
    """

    deep: bool = False
    print_data: bool = False
    decoder: str = ""
    key_class: str = ""
    value_class: str = ""
    sanity_check: bool = False
    verify_only: bool = False
    batch_bytes_max: int = 5 << 20
    bytes_max: int = 2**31 - 1
    skip_metadata: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output as text and as JSON data. A line that reports a problem goes to standard error, and causes exit
    code 1."""

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    problem: bool = False


def problem(text: str, **data: Any) -> Line:
    """Return a line that reports a problem in a file."""
    return Line(text, data, problem=True)


def base_offset(path: Path) -> int:
    """Get the base offset of a segment from a file name. Raises ``CommandError`` for any other name."""
    match = _SEGMENT_NAME.fullmatch(path.name)
    if match is None:
        raise CommandError(
            f"{path} does not have the name of a segment file: a first offset of 20 digits, then a suffix."
        )
    return int(match[1])
