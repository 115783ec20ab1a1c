"""Reports which of the byte-walking modules run compiled, and guards against stale ones.

``setup.py`` compiles a few modules with mypyc and records the digest of each compiled source. Python prefers an
extension module to the source beside it, so without a guard an edit would be ignored silently. The finder in this
module, installed by ``parley/protocol/__init__.py`` before any of those modules is imported, compares the digests: a
stale module is imported from its source, with one warning that says how to rebuild it. ``PARLEY_PURE=1`` runs every
module from its source.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).parent
_BUILT = _PACKAGE / "_built.json"


class StaleModuleWarning(RuntimeWarning):
    """A compiled module is older than its source, so the source runs instead."""


def built_digests() -> dict[str, str]:
    """Return the SHA-256 of each module's compiled source, by module name; empty if nothing was compiled."""
    try:
        digests: dict[str, str] = json.loads(_BUILT.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the package may be in a zip file
        return {}
    return digests


def source_of(module: str) -> Path:
    """Return the path of a module's source file."""
    return _PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")


def _is_stale(module: str, digest: str) -> bool:
    source = source_of(module)
    return source.exists() and hashlib.sha256(source.read_bytes()).hexdigest() != digest


class _SourceFirst:
    """A finder for ``sys.meta_path`` that imports the source of a module if its compiled form must not be used.

    It has no base class, because ``importlib.abc`` imports much that the rest of a broker does not need.
    """

    def __init__(self, digests: dict[str, str], pure: bool) -> None:
        self._digests = digests
        self._pure = pure

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        digest = self._digests.get(fullname)
        if digest is None:
            return None
        stale = _is_stale(fullname, digest)
        if stale and not self._pure:
            warnings.warn(
                f"{fullname} was compiled from an older source and runs interpreted; rebuild with `make build`",
                StaleModuleWarning,
                stacklevel=2,
            )
        if not (stale or self._pure):
            return None
        source = str(source_of(fullname))
        return importlib.util.spec_from_file_location(fullname, source, loader=SourceFileLoader(fullname, source))


def install_guard() -> None:
    """Put the finder first on ``sys.meta_path``. Called once, by ``parley/protocol/__init__.py``."""
    digests = built_digests()
    if digests:
        sys.meta_path.insert(0, _SourceFirst(digests, pure=os.environ.get("PARLEY_PURE", "") not in ("", "0")))


def status() -> dict[str, str]:
    """Return ``"compiled"`` or ``"interpreted"`` for each module that can be compiled: the form that an import would
    load.

    Does not import the modules, because they may need packages of an extra that is not installed.
    """
    names = built_digests() or {"parley.protocol.records._walk": ""}
    report = {}
    for name in sorted(names):
        spec = importlib.util.find_spec(name)
        file = (spec.origin if spec else None) or ""
        compiled = file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))
        report[name] = "compiled" if compiled else "interpreted"
    return report
