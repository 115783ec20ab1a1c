"""Recognize settings that are secrets by their names, for programs that have no definition of the setting."""

from __future__ import annotations

import re
from typing import Final

SECRET_NAME: Final = re.compile(
    r"password|passwd|secret|jaas|token(?!\.endpoint|-file)|credential|keystore\.key$|api[._-]?key|access[._-]?key",
    re.IGNORECASE,
)
"""Matches anywhere in the name of a setting whose value must not be shown."""
