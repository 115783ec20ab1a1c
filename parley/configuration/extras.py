"""What error messages advise when the libraries of an extra of Parley's package are not installed."""

from __future__ import annotations


def how_to_install(*extras: str) -> str:
    """Return the text that says how to install extras, such as ``security``.

    It names a path and not ``parley-broker``: the package index has another project of that name.
    """
    return f"pip install '../parley[{','.join(extras)}]' (the path is that of a clone of Parley)"
