"""Where temporary files are: those of tests in memory, because they write and sync tens of thousands of small files."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

COMMON_FOLDER: Final = Path(tempfile.gettempdir())
"""The machine's folder, for the locks that all test processes share. ``tests/conftest.py`` sets another for files."""

_MEMORY: Final = "/dev/shm"
_MEMORY_BYTES_MIN: Final = 4 << 30
"""Much more than a run of the tests and all of its servers use."""


def fast_folder() -> str | None:
    """Return a folder in memory. Returns None if there is too little memory, or if TMPDIR names another place.

    A process that is killed still finds its data there. No test cuts the machine's power.
    """
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return None
    return _MEMORY if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN else None
