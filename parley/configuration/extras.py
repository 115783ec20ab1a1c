"""What error messages advise when the libraries of an extra of Parley's package are not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_CLONE: Final = Path(__file__).resolve().parents[2]


def how_to_install(*extras: str) -> str:
    """Return the text that says how to install extras, such as ``security``.

    It names a path and not ``parley-broker``: the package index has another project of that name.
    """
    wanted = ",".join(extras)
    if (_CLONE / "pyproject.toml").exists():  # this is the clone
        return f"pip install '{_CLONE}[{wanted}]'"
    return f"pip install '../parley[{wanted}]' (the path is that of a clone of Parley)"
