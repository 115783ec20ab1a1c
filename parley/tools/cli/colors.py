"""Colors and bold text on terminals: the rules of ``--color`` and of the variable ``NO_COLOR``.

``auto``, the default, colors output to a terminal, unless ``NO_COLOR`` is set or ``TERM`` is ``dumb``.
"""

from __future__ import annotations

import os
import sys
from enum import IntEnum, StrEnum
from typing import Final, TextIO


class When(StrEnum):
    """The values of ``--color``."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Color(IntEnum):
    """Foreground colors of a terminal."""

    RED = 31
    YELLOW = 33
    BLUE = 34


_PARTITIONS: Final = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""The foreground colors that distinguish partitions. Red is reserved for errors."""

_chosen = When.AUTO


def choose(when: When) -> None:
    """Set when output of this process is colored."""
    global _chosen
    _chosen = when


def is_colored(stream: TextIO) -> bool:
    """Return True if text for this stream is to be colored."""
    if _chosen is not When.AUTO:
        return _chosen is When.ALWAYS
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bold(text: str) -> str:
    """Return a string for standard output, in bold if color is enabled."""
    return _styled(text, "1", sys.stdout)


def colored(text: str, color: Color) -> str:
    """Return a string for standard output, in bold and in this color if color is enabled."""
    return _styled(text, f"1;{color.value}", sys.stdout)


def of_partition(text: str, index: int) -> str:
    """Return a string for standard output, in the color of a partition if color is enabled."""
    return _styled(text, str(_PARTITIONS[index % len(_PARTITIONS)]), sys.stdout)


def alarming(text: str) -> str:
    """Return a string for standard error, in bold red if color is enabled."""
    return _styled(text, f"1;{Color.RED.value}", sys.stderr)


def _styled(text: str, style: str, stream: TextIO) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if text and is_colored(stream) else text
