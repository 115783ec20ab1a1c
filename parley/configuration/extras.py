"""Advice in error messages if the libraries of an extra of Parley's package are not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_CLONE: Final = Path(__file__).resolve().parents[2]


def how_to_install(*extras: str) -> str:
    """Return a text that explains how to install extras, such as ``security``.

    It gives a path instead of the name ``parley-broker``, because another project on the package index uses that name.
    """
    wanted = ",".join(extras)
    if (_CLONE / "pyproject.toml").exists():  # the program runs from a clone
        return f"pip install '{_CLONE}[{wanted}]'"
    return f"pip install '../parley[{wanted}]' (the path is that of a clone of Parley)"
