"""``make mutants``: plant a fault, run the quick tests of the module's folder, and see that one of them fails.

Rules: cosmic-ray's operators make the mutants; the sample is decided by a seed. A mutant is never written to disk: its
process is forked and imports the changed source in place of the file. Hypothesis draws the same examples each time. A
mutant on which the tests hang is killed, like one that cannot be imported. They hang if they take four minutes and five
times as long as without a mutant.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
QUICK = "not slow and not system and not spark"
SECONDS_MAX = 240.0

_REPLICATION = ["tests/broker/replication", "tests/broker/api/test_produce.py", "tests/broker/api/fetch"]
TARGETS = {
    "parley/storage/log.py": ["tests/storage/test_log.py", "tests/storage"],
    "parley/broker/replication/partition.py": _REPLICATION,
    "parley/broker/replication/isr_decisions.py": _REPLICATION,
    "parley/broker/replication/follower_decisions.py": _REPLICATION,
    "parley/broker/replication/followed_partition.py": _REPLICATION,
    "parley/broker/coordinators/groups": ["tests/broker/coordinators"],
    "parley/broker/controller": ["tests/broker/controller", "tests/broker/api"],
    "parley/consensus/recipes": [
        "tests/consensus/test_recipes.py",
        "tests/consensus/test_settled_write.py",
        "tests/consensus/conformance/test_memory_conforms.py",
    ],
}
"""What is mutated, a file or all files of a folder, and the tests that must notice."""

PROVE_NOTHING = ("_BitOr_", "_Is_Eq", "_IsNot_NotEq", "_Eq_Is", "_NotEq_IsNot", "Variable", "RemoveDecorator")
"""Parts of the names of operators whose mutants are the same program (``int | None``), or no program."""

GUARDS = re.compile(r"(frozen|slots)=(True|False)")
"""Flags of dataclasses that guard against mistakes and change no result: their mutants do not count."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file."""

    path: Path
    operator: str
    line: int
    source: str
    was: str
    becomes: str

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


def operators() -> dict[str, list[str]]:
    """The operators by what they change: a kind is drawn as often as it has places, however many operators it has."""
    from cosmic_ray.plugins import operator_names

    families: dict[str, list[str]] = {}
    for name in operator_names():
        if not any(part in name for part in PROVE_NOTHING):
            words = name.split("_")
            families.setdefault("_".join(words[:2]), []).append(name)
    return families


def places_in(path: Path, rng: Random) -> list[tuple[Path, str, int]]:
    """A file, an operator and the number of a place: one operator of each kind for each place that it can change."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator

    tree = get_ast((ROOT / path).read_text())
    nodes = list(ast_nodes(tree))
    found = []
    for names in operators().values():
        name = rng.choice(names)
        operator = get_operator(name)()
        count = sum(1 for node in nodes for _ in operator.mutation_positions(node))
        found += [(path, name, number) for number in range(count)]
    return found


def mutant_at(path: Path, name: str, occurrence: int) -> Mutant | None:
    """The mutant of a place; None if it is no program, or the same."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / path).read_text()
    mutated = mutate_code(source, get_operator(name)(), occurrence)
    if mutated is None or GUARDS.sub("", mutated) == GUARDS.sub("", source) or not _is_program(mutated):
        return None
    before, after = source.splitlines(), mutated.splitlines()
    changed = next(n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    return Mutant(path, name, changed + 1, mutated, before[changed].strip(), after[changed].strip())


def _is_program(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def sample(target: str, count: int, seed: int) -> list[Mutant]:
    """So many mutants of a target. The same for a seed as long as the files are the same."""
    rng = Random(f"{seed} {target}")
    whole = ROOT / target
    files = sorted(whole.rglob("*.py")) if whole.is_dir() else [whole]
    places = [place for file in files for place in places_in(file.relative_to(ROOT), rng)]
    rng.shuffle(places)
    made = (mutant for place in places if (mutant := mutant_at(*place)) is not None)
    return list(itertools.islice(made, count))


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

    def get_source(self, fullname: str) -> str:
        return self._source

    def is_package(self, fullname: str) -> bool:
        return self._is_package


def run(mutant: Mutant | None, tests: Sequence[str]) -> int:
    """Fork and run the tests there; the process. None is the program as it is."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    code = 99
    try:
        if mutant is not None:
            sys.meta_path.insert(0, _Planted(mutant))
        import pytest

        # With plain asserts pytest imports no module of this distribution in its own way.
        words = [
            "-x",
            "-q",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            "--hypothesis-profile",
            "mutants",
            "-m",
            QUICK,
            *tests,
        ]
        code = int(pytest.main(words))
    finally:
        os._exit(code)


def judge(
    mutants: Sequence[tuple[Mutant, Sequence[str]]], jobs: int, seconds_max: float = SECONDS_MAX
) -> Iterator[tuple[Mutant, bool]]:
    """Each mutant, and whether it was killed; ``jobs`` at a time."""
    waiting = list(reversed(mutants))
    running: dict[int, tuple[Mutant, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant, tests = waiting.pop()
            running[run(mutant, tests)] = (mutant, time.monotonic())
        for child, (mutant, began) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended and time.monotonic() - began < seconds_max:
                continue
            with_rest = _end(child) if not ended else status
            del running[child]
            yield mutant, with_rest != 0
        time.sleep(0.05)


def _end(child: int) -> int:
    os.killpg(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def table(counted: dict[str, Counter[bool]], survivors: Sequence[Mutant]) -> str:
    lines = ["| module | mutants | killed | |", "| --- | ---: | ---: | ---: |"]
    total: Counter[bool] = Counter()
    for name, counts in [*counted.items(), ("all", total)]:
        if name != "all":
            total += counts
        lines.append(f"| `{name}` | {counts.total()} | {counts[True]} | {counts[True] / (counts.total() or 1):.0%} |")
    told = [f"{each.where} {each.operator}\n    - {each.was}\n    + {each.becomes}" for each in survivors]
    return "\n".join([*lines, "", *(["Survivors:", *told] if told else [])])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="A sampled mutation run.")
    parser.add_argument("--sample", type=int, default=40, help="mutants of each module (40)")
    parser.add_argument("--seed", type=int, default=1, help="what decides which (1)")
    parser.add_argument("--jobs", type=int, default=2, help="how many are tried at a time (2)")
    parser.add_argument("--at-least", type=float, default=0.85, help="fail if a smaller part is killed (0.85)")
    parser.add_argument("--targets", type=Path, help="a JSON file in place of the modules and their tests")
    parser.add_argument("modules", nargs="*", help="only those whose names contain one of these words")
    asked = parser.parse_args()
    targets = json.loads(asked.targets.read_text()) if asked.targets else TARGETS
    chosen = {
        name: tests for name, tests in targets.items() if not asked.modules or any(w in name for w in asked.modules)
    }
    os.chdir(ROOT)
    seconds_max = SECONDS_MAX
    for those in sorted(set(map(tuple, chosen.values()))):
        began = time.monotonic()
        if os.waitpid(run(None, those), 0)[1]:
            sys.exit(f"Error: these tests fail without a mutant: {' '.join(those)}")
        seconds_max = max(seconds_max, 5 * (time.monotonic() - began))
    counted: dict[str, Counter[bool]] = {name: Counter() for name in chosen}
    of = {}
    mutants = []
    for name, tests in chosen.items():
        for mutant in sample(name, asked.sample, asked.seed):
            of[id(mutant)] = name
            mutants.append((mutant, tests))
    survivors = []
    for mutant, is_killed in judge(mutants, asked.jobs, seconds_max):
        counted[of[id(mutant)]][is_killed] += 1
        print(
            f"{'killed  ' if is_killed else 'SURVIVED'} {mutant.where} {mutant.operator}", file=sys.stderr, flush=True
        )
        if not is_killed:
            survivors.append(mutant)
    print(table(counted, survivors))
    killed = sum(counts[True] for counts in counted.values())
    return 0 if killed >= asked.at_least * len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
