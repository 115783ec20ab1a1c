"""Tries mutants: runs tests on each in a separate forked process, which never writes the mutant to disk.

If a mutant changes a function, a process that has collected the tests forks, gives the function the mutant's code and
runs the tests that call it. For any other mutant, and for functions that are called while modules are imported, a new
process imports the changed source in place of the file and runs all tests, those that call the file's functions first.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from types import CodeType, FunctionType, ModuleType

import pytest

from tests.mutation.functions import Calls, ImportCalls, Place, functions_around, functions_at, mutated_code
from tests.mutation.mutants import ROOT, Mutant
from tests.support.fast_folder import fast_folder

QUICK = "not slow and not system and not spark"
TEST_HANGS = "--timeout-method=thread"
"""A test that hangs ends its process, whatever it waits for."""
SHORT_S = 0.2
HANGS_AFTER_S = 60.0
TIMES_LONGER = 10
"""Tests hang if they take a minute and ten times as long as without a mutant: the machine may do other things too."""
_NOT_PLANTED = 98
"""The exit code of a trial whose tests imported the file and not the mutant: a fault of this program."""


@dataclass(frozen=True, slots=True)
class Program:
    """What the tests do without a mutant."""

    seconds: dict[str, float]
    """How long each test takes, by its id."""
    called: dict[str, frozenset[Place]]
    """The functions of the mutated files that each test calls."""
    called_by_imports: frozenset[Place]

    def callers(self, place: Place) -> frozenset[str]:
        """Return the tests that call a function."""
        return frozenset(test for test, places in self.called.items() if place in places)

    def callers_in(self, path: str) -> frozenset[str]:
        """Return the tests that call any function of a file."""
        return frozenset(test for test, places in self.called.items() if any(place.path == path for place in places))

    def seconds_max(self, tests: frozenset[str]) -> float:
        """Return after how long the tests are taken to hang."""
        return HANGS_AFTER_S + TIMES_LONGER * sum(self.seconds[test] for test in tests)

    def limit(self, items: Sequence[pytest.Item]) -> None:
        """Give each test the time after which it is taken to hang."""
        for item in items:
            item.add_marker(pytest.mark.timeout(HANGS_AFTER_S + TIMES_LONGER * self.seconds.get(item.nodeid, 0)))

    def order(self, items: list[pytest.Item], first: frozenset[str]) -> None:
        """Put some tests before the others, and short ones before long ones."""
        items.sort(key=lambda item: (item.nodeid not in first, self.seconds.get(item.nodeid, 0) > SHORT_S))


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutant, and the function that tries it in a separate process: it returns 0 if all tests pass."""

    mutant: Mutant
    body: Callable[[], int]
    seconds_max: float


# --- Processes ---


@dataclass(frozen=True, slots=True)
class _Process:
    """A forked process with its own process group and its own folder for temporary files."""

    pid: int
    folder: str
    began: float

    def end(self) -> None:
        """Kill what is left of it."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        shutil.rmtree(self.folder, ignore_errors=True)


def _fork(body: Callable[[], int]) -> _Process:
    folder = tempfile.mkdtemp(prefix="mutant-", dir=fast_folder())
    began = time.monotonic()
    pid = os.fork()
    if pid:
        return _Process(pid, folder, began)
    code = 99
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = folder
        code = body()
    finally:
        os._exit(code)


def judge(trials: Sequence[Trial], jobs: int) -> Iterator[tuple[Mutant, bool]]:
    """Try mutants, ``jobs`` at a time: each mutant, and whether it was killed. Tests that hang kill it too.

    Ends the program if a mutant was not planted.
    """
    waiting = list(reversed(trials))
    running: list[tuple[Trial, _Process]] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                trial = waiting.pop()
                running.append((trial, _fork(trial.body)))
            for trial, process in list(running):
                ended, status = os.waitpid(process.pid, os.WNOHANG)
                if ended or time.monotonic() - process.began > trial.seconds_max:
                    running.remove((trial, process))
                    process.end()
                    if ended and os.waitstatus_to_exitcode(status) == _NOT_PLANTED:
                        sys.exit(f"Error: the tests imported {trial.mutant.path} without its mutant")
                    yield trial.mutant, not ended or status != 0
            time.sleep(0.01)
    finally:
        for _, process in running:
            process.end()


# --- Mutants of functions ---


def try_all(tests: Sequence[str], mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, bool]]:
    """Try mutants, ``jobs`` at a time, in one process after the other: each mutant, and whether it was killed.

    Ends the program if the tests fail without a mutant.
    """
    receiving, sending = Pipe(duplex=False)
    collector = get_context("fork").Process(target=_collect_and_try, args=(tests, mutants, jobs, sending))
    collector.start()
    sending.close()
    left = dict(enumerate(mutants))
    try:
        seen: Program | str = receiving.recv()
        if isinstance(seen, str):
            sys.exit(f"Error: this test fails without a mutant: {seen}")
        program = seen
        while True:
            number, is_killed = receiving.recv()
            yield left.pop(number), is_killed
    except EOFError:
        collector.join()
    if collector.exitcode:
        sys.exit(f"Error: these tests cannot be collected, or hang without a mutant: {' '.join(tests)}")
    yield from judge([_trial_of_import(mutant, tests, program) for mutant in left.values()], jobs)


def _collect_and_try(tests: Sequence[str], mutants: Sequence[Mutant], jobs: int, out: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    plugin = _TrialsOfFunctions(mutants, jobs, out)
    sys.settrace(plugin.import_calls)
    sys.exit(_run_pytest(tests, plugin))


def _run_pytest(tests: Sequence[str], plugin: object) -> int:
    words = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "mutants", "-m", QUICK, TEST_HANGS]
    # With plain asserts pytest imports no module of this distribution in its own way.
    return int(pytest.main([*words, "--assert=plain", *tests], plugins=[plugin]))


class _TrialsOfFunctions:
    """A plugin of pytest that runs the collected tests in forks: once to see what they call, and on each mutant."""

    def __init__(self, mutants: Sequence[Mutant], jobs: int, out: Connection) -> None:
        self._mutants = mutants
        self._jobs = jobs
        self._out = out
        self._files = sorted({str(ROOT / mutant.path) for mutant in mutants})
        self.import_calls = ImportCalls(self._files)
        self._calls = Calls()
        self._seconds: dict[str, float] = {}
        self._called: dict[str, frozenset[Place]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.settrace(None)
        program = self._seen(session)
        self._out.send(program)
        if isinstance(program, str):
            raise session.Failed("a test fails without a mutant")
        program.limit(session.items)
        trials = {}
        for number, mutant in enumerate(self._mutants):
            if trial := _trial_of_function(mutant, session, program):
                trials[number] = trial
        numbers = {id(trial.mutant): number for number, trial in trials.items()}
        for mutant, is_killed in judge(list(trials.values()), self._jobs):
            self._out.send((numbers[id(mutant)], is_killed))
        return True

    def _seen(self, session: pytest.Session) -> Program | str:
        """Run all tests, and see what they call. Returns the id of a test that fails, if one does."""
        receiving, sending = Pipe(duplex=False)
        process = _fork(lambda: self._run_observed(session, sending))
        sending.close()
        try:
            program: Program | str = receiving.recv()
        except EOFError:
            raise session.Failed("the tests hang without a mutant") from None
        finally:
            process.end()
        return program

    def _run_observed(self, session: pytest.Session, out: Connection) -> int:
        for path in self._files:
            self._calls.observe(path)
        failed = _failed(session, session.items)
        out.send(failed or Program(self._seconds, self._called, frozenset(self.import_calls.places)))
        return 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.monotonic() - began
            self._called[item.nodeid] = self._calls.take()


def _failed(session: pytest.Session, items: Sequence[pytest.Item]) -> str | None:
    """Run tests until one fails. Returns its id."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return item.nodeid
    return None


def _trial_of_function(mutant: Mutant, session: pytest.Session, program: Program) -> Trial | None:
    """Return how to try a mutant inside a function; None if only importing the module plants it."""
    around = functions_around(mutant)
    if around is None or around.is_header or around.outermost in program.called_by_imports:
        return None
    code = mutated_code(mutant, around.outermost)
    functions = functions_at(around.outermost)
    if code is None or not functions or any(code.co_freevars != each.__code__.co_freevars for each in functions):
        return None
    tests = program.callers(around.innermost)
    items = [item for item in session.items if item.nodeid in tests]
    program.order(items, tests)
    return Trial(mutant, partial(_give_and_run, functions, code, session, items), program.seconds_max(tests))


def _give_and_run(
    functions: Sequence[FunctionType], code: CodeType, session: pytest.Session, items: Sequence[pytest.Item]
) -> int:
    for function in functions:
        function.__code__ = code
    return 0 if _failed(session, items) is None else 1


# --- Other mutants ---


def _trial_of_import(mutant: Mutant, tests: Sequence[str], program: Program) -> Trial:
    def run() -> int:
        planted = _Planted(mutant)
        sys.meta_path.insert(0, planted)
        code = _run_pytest(tests, _Order(program, program.callers_in(str(ROOT / mutant.path))))
        return _NOT_PLANTED if planted.is_missed else code

    return Trial(mutant, run, program.seconds_max(frozenset(program.seconds)))


class _Order:
    """A plugin of pytest: tests that may notice a mutant come first, and each has a time limit."""

    def __init__(self, program: Program, first: frozenset[str]) -> None:
        self._program = program
        self._first = first

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._program.limit(items)
        self._program.order(items, self._first)


class _Planted(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module from a text."""

    def __init__(self, mutant: Mutant) -> None:
        parts = mutant.path.with_suffix("").parts
        self._is_package = parts[-1] == "__init__"
        self._name = ".".join(parts[:-1] if self._is_package else parts)
        self._path = str(ROOT / mutant.path)
        self._source = mutant.source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self._path, is_package=self._is_package)

    @property
    def is_missed(self) -> bool:
        """True if the module was imported from its file."""
        imported = sys.modules.get(self._name)
        return imported is not None and imported.__loader__ is not self

    def get_source(self, fullname: str) -> str:
        return self._source

    def is_package(self, fullname: str) -> bool:
        return self._is_package
