"""Reports which modules of ``[tool.parley] compiled`` run compiled, and guards against stale compiled modules.

``setup.py`` compiles a few modules with mypyc and records the digest of each compiled source. Python prefers an
extension module to the source beside it, so without a guard an edit would be ignored silently. The guard in this
module, installed by ``parley/__init__.py`` before any of those modules is imported, compares the digests: if a
module is stale, all of them are imported from their sources, with one warning that says how to rebuild them.
``PARLEY_PURE=1`` does the same without a warning.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Collection, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).parent
_BUILT = _PACKAGE / "_built.json"


class StaleModuleWarning(RuntimeWarning):
    """Issued if a compiled module is older than its source, so that all sources run instead."""


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


class _FromSource:
    """A finder for ``sys.meta_path`` that imports modules from their sources even if they have a compiled form.

    It has no base class, because ``importlib.abc`` imports many modules that a broker does not need otherwise.
    """

    def __init__(self, modules: Collection[str]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        source = str(source_of(fullname))
        return importlib.util.spec_from_file_location(fullname, source, loader=SourceFileLoader(fullname, source))


def install_guard() -> None:
    """Make all modules run from their sources if one of them is stale. Called once, by ``parley/__init__.py``.

    Compiled modules call each other without Python's imports, so a stale module must not run beside them.
    """
    digests = built_digests()
    is_pure = os.environ.get("PARLEY_PURE", "") not in ("", "0")
    stale = [] if is_pure else [module for module, digest in digests.items() if _is_stale(module, digest)]
    if stale:
        warnings.warn(
            f"compiled from an older source: {', '.join(stale)}; all modules run interpreted until `make build`",
            StaleModuleWarning,
            stacklevel=2,
        )
    if is_pure or stale:
        sys.meta_path.insert(0, _FromSource(digests))


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
