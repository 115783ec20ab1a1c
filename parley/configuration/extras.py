"""The advice in error messages about missing libraries: how to install an extra of Parley's package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_CLONE: Final = Path(__file__).resolve().parents[2]


def how_to_install(*extras: str) -> str:
    """Return the command that installs extras, such as ``security``.

    The command contains a path instead of the name ``parley-broker``, because another project on the package index uses
    that name.
    """
    wanted = ",".join(extras)
    if (_CLONE / "pyproject.toml").exists():  # the program runs from a clone
        return f"pip install '{_CLONE}[{wanted}]'"
    return f"pip install '../parley[{wanted}]' (the path is that of a clone of Parley)"
