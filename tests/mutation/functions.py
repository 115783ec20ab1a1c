"""The functions of the mutated files: finding the function of a line and the tests that call it, and replacing it."""

from __future__ import annotations

import ast
import builtins
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import NamedTuple

from tests.mutation.mutants import ROOT, Mutant

_NOTE = "_parley_mutation_note"


class Place(NamedTuple):
    """A function by its file and first line, that of its first decorator."""

    path: str
    line: int


@dataclass(frozen=True, slots=True)
class Around:
    """The functions around a line."""

    outermost: Place
    innermost: Place
    is_header: bool
    """True if the line is a decorator or parameter of the outermost function, evaluated when the module is imported."""


def functions_around(mutant: Mutant) -> Around | None:
    """Return the functions around a mutant's line; None if it is outside all functions."""
    line = mutant.line
    around = [each for each in _definitions(ast.parse((ROOT / mutant.path).read_text())) if _spans(each, line)]
    if not around:
        return None
    path = str(ROOT / mutant.path)
    outermost, innermost = around[0], around[-1]
    return Around(
        Place(path, _first_line(outermost)), Place(path, _first_line(innermost)), line < outermost.body[0].lineno
    )


def _definitions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions, outer ones before inner ones."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        yield from _definitions(child)


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _spans(function: ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> bool:
    return _first_line(function) <= line <= (function.end_lineno or function.lineno)


class ImportCalls:
    """Records which functions of some files are called; a function for ``sys.settrace``."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = frozenset(files)
        self.places: set[Place] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename in self._files:
            self.places.add(Place(frame.f_code.co_filename, frame.f_code.co_firstlineno))


class Calls:
    """Records which functions of some files are called, by a call at the beginning of each."""

    def __init__(self) -> None:
        self._places: set[Place] = set()

    def observe(self, path: str) -> None:
        """Change the functions of an imported file so that their calls are recorded."""
        setattr(builtins, _NOTE, self._note)
        tree = ast.parse(Path(path).read_text())
        functions = list(_definitions(tree))
        for function in functions:
            note = ast.parse(f"{_NOTE}({path!r}, {_first_line(function)})").body[0]
            for node in ast.walk(note):
                ast.copy_location(node, function.body[0])
            function.body.insert(0, note)
        observing = compile(tree, path, "exec")
        for function in functions:
            place = Place(path, _first_line(function))
            code = code_at(observing, place)
            for each in functions_at(place):
                if code is not None and code.co_freevars == each.__code__.co_freevars:
                    each.__code__ = code

    def _note(self, path: str, line: int) -> None:
        self._places.add(Place(path, line))

    def take(self) -> frozenset[Place]:
        """Return the functions called since the last time."""
        places, self._places = self._places, set()  # threads may add to it
        return frozenset(places)


def functions_at(place: Place) -> list[FunctionType]:
    """Return the function objects, imported already, of a place."""
    return _imported_functions().get(place, [])


@cache
def _imported_functions() -> dict[Place, list[FunctionType]]:
    found: dict[Place, list[FunctionType]] = {}
    gc.unfreeze()
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            found.setdefault(Place(each.__code__.co_filename, each.__code__.co_firstlineno), []).append(each)
    gc.freeze()
    return found


def mutated_code(mutant: Mutant, place: Place) -> CodeType | None:
    """Return the code that a mutant gives to the function at a place; None if it has moved."""
    return code_at(compile(mutant.source, place.path, "exec"), place)


def code_at(module: CodeType, place: Place) -> CodeType | None:
    """Return the code of the function at a place, from the code of its module."""
    waiting = [module]
    while waiting:
        for constant in waiting.pop().co_consts:
            if isinstance(constant, CodeType):
                if constant.co_firstlineno == place.line and not constant.co_name.startswith("<"):
                    return constant
                waiting.append(constant)
    return None
