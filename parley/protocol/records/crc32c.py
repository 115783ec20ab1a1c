"""The function ``crc32c`` from the package of that name, imported without the rest of the package.

The package also imports its command-line tool and looks up its own version. That loads 30 modules, and takes 6% of the
instructions of a broker's start.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final, cast

_Checksum = Callable[..., int]


def _load() -> _Checksum:
    """Return the function from the package's extension module, or from the package itself if it has no such module."""
    package = find_spec("crc32c")
    extension = PathFinder.find_spec("_crc32c", package.submodule_search_locations) if package else None
    if extension is None or extension.loader is None:
        from crc32c import crc32c as whole

        return cast(_Checksum, whole)
    module = module_from_spec(extension)
    extension.loader.exec_module(module)
    return cast(_Checksum, module.crc32c)


crc32c: Final = _load()
"""``crc32c(data, value=0)`` returns the CRC-32C of ``data``, continued from ``value``, the checksum of earlier data."""
