"""Compiles the modules of ``[tool.parley] compiled`` with mypyc.

Without a C compiler the same sources run interpreted: the extensions are optional, so a failed compilation only costs
speed. The digest of each compiled source is written beside the package (``parley/_built.json``); ``parley.compiled``
reads it to notice a compiled module that is older than its source.
"""

import hashlib
import json
import os
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
COMPILED: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["parley"]["compiled"]

METADATA_ONLY = {"dist_info", "egg_info", "sdist"}
"""Commands that need no compiled module: to translate the modules for them would cost twenty seconds."""


def extensions() -> list[Extension]:
    if os.environ.get("PARLEY_PURE") or METADATA_ONLY & set(sys.argv):
        return []
    from mypyc.build import mypycify

    built: list[Extension] = mypycify(
        # In an isolated build nothing else is installed, so other imports of these modules are ignored.
        ["--config-file=", "--python-version=3.11", "--ignore-missing-imports", *COMPILED],
        opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
        group_name="parley._compiled",
    )
    for extension in built:
        extension.optional = True
    return built


class BuildAndNote(build_ext):
    """Records what was compiled. If a compilation failed, removes the extensions of an earlier build, which would be
    stale."""

    def run(self) -> None:
        self.succeeded: list[str] = []
        super().run()
        target = ROOT if self.inplace or self.editable_mode else Path(self.build_lib)
        note = target / "parley" / "_built.json"
        if len(self.succeeded) == len(self.extensions):
            note.write_text(json.dumps({module(source): digest(source) for source in COMPILED}, indent=1) + "\n")
            return
        note.unlink(missing_ok=True)
        for source in COMPILED:
            for leftover in (target / source).parent.glob(f"{Path(source).stem}.*.so"):
                leftover.unlink()

    def build_extension(self, ext: Extension) -> None:
        super().build_extension(ext)
        self.succeeded.append(ext.name)


def module(source: str) -> str:
    return source.removesuffix(".py").replace("/", ".")


def digest(source: str) -> str:
    return hashlib.sha256((ROOT / source).read_bytes()).hexdigest()


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildAndNote})
