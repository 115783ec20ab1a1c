"""Faulty file operations in one folder only, because tests share their process with brokers of other tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def only_below(folder: Path, faulty: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that is ``faulty`` for files below the folder, and ``real`` for all others.

    The operation's first argument is a path or a file descriptor.
    """

    def operation(file: int | str | Path, *args: Any, **kwargs: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file
        return (faulty if Path(path).is_relative_to(folder) else real)(file, *args, **kwargs)

    return operation
