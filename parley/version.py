"""The version of Parley. ``pyproject.toml`` reads it from here, because reading it from the package metadata at run
time is slow."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
