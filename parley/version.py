"""The version of Parley. ``pyproject.toml`` takes it from here; to read it from the metadata of the package is slow."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
