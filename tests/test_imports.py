"""No two files import each other, directly or through others, and each process imports only what it needs.

``import-linter`` checks the layers.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _statements(node: ast.AST) -> Iterator[ast.stmt | ast.ExceptHandler | ast.match_case]:
    """Yield all statements below a node: only they import, and expressions are most of a tree."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, field, ()):
            yield inner
            yield from _statements(inner)


def _imported(tree: ast.AST, modules: set[str]) -> set[str]:
    """Return the files that a file imports, wherever it does; of a package, the file of the name that is
    taken from it."""
    found = set()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {node.module} & modules
    return found


@pytest.mark.slow
def test_no_files_import_each_other() -> None:
    # parley/__init__.py is left out: it offers names from all parts, lazily.
    files = {_module(path): path for path in (ROOT / "parley").rglob("*.py") if path.parent != ROOT / "parley"}
    graph = {name: _imported(ast.parse(path.read_text()), set(files)) - {name} for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError("files import each other: " + " <- ".join(error.args[1])) from None


PIPELINE = {
    "fastapi",
    "numpy",
    "pandas",
    "parley.pipeline",
    "pyarrow",
    "pydantic",
    "pyspark",
    "sqlalchemy",
    "starlette",
}
"""What only the pipeline needs."""
OF_OTHER_CONFIGURATIONS = {"aiohttp", "cryptography", "grpc", "jwt", "kazoo", "prometheus_client"}
"""What a broker or a client needs with certain settings only."""
TERMINAL = {"confluent_kafka", "rich", "typer"}
NOTHING_OF_A_BROKER = {"parley.broker", "parley.consensus", "parley.storage", "uvloop"}
PACKAGE_METADATA = {"email", "importlib.metadata", "importlib.resources"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imports", "unneeded", "at_most"),
    [
        ("parley", {"asyncio", "dataclasses", "parley.protocol"} | NOTHING_OF_A_BROKER | PACKAGE_METADATA, 65),
        (
            "parley.tools.cli.start, parley.broker.server, uvloop",
            PIPELINE | OF_OTHER_CONFIGURATIONS | TERMINAL | PACKAGE_METADATA,
            830,
        ),
        (
            "parley.tools.cli.topics, parley.protocol.client",
            PIPELINE | OF_OTHER_CONFIGURATIONS | NOTHING_OF_A_BROKER | PACKAGE_METADATA | {"confluent_kafka", "rich"},
            240,
        ),
    ],
    ids=["the package", "a broker", "a command"],
)
def test_a_process_imports_only_the_modules_that_it_needs(imports: str, unneeded: set[str], at_most: int) -> None:
    """Hundreds of processes are started by users and tests. The limits leave room for a tenth more modules."""
    program = f"import sys\nbefore = set(sys.modules)\nimport {imports}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert loaded & unneeded == set()
    assert len(loaded) <= at_most


COMPILED = {
    module.removesuffix(".py").replace("/", ".")
    for module in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["parley"]["compiled"]
}
GENERATED_AT_ONCE = """
import inspect, sys
import parley.tools.cli.start, parley.broker.server
for name, module in list(sys.modules.items()):
    if name.startswith("parley."):
        for each in vars(module).values():
            made = inspect.isclass(each) and each.__module__ == name and vars(each).get("__dataclass_params__")
            if made and made.init:
                print(f"{name}.{each.__name__}")
"""


@pytest.mark.slow
def test_a_start_generates_no_methods_of_dataclasses() -> None:
    """It took a third of a start (``parley.light_dataclasses``). What mypyc compiles needs the standard library."""
    done = subprocess.run(
        [sys.executable, "-c", GENERATED_AT_ONCE], capture_output=True, text=True, check=True, cwd=ROOT
    )
    found = {name for name in done.stdout.split() if name.rpartition(".")[0] not in COMPILED}
    assert found == {"parley.protocol.messages.Api"}  # its cached properties need a __dict__
