"""``make mutants``: plant a fault, run the quick tests of the module's folder, and see that one of them fails.

Rules: a seed decides the sample. Hypothesis draws the same examples each time. A mutant on which the tests hang is
killed, like one that cannot be imported.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.mutants import ROOT, Mutant, sample
from tests.mutation.trials import try_all

_REPLICATION = ["tests/broker/replication", "tests/broker/api/test_produce.py", "tests/broker/api/fetch"]
TARGETS = {
    "parley/storage/log.py": ["tests/storage/test_log.py", "tests/storage"],
    "parley/broker/replication/partition.py": _REPLICATION,
    "parley/broker/replication/followers.py": _REPLICATION,
    "parley/broker/replication/isr_decisions.py": _REPLICATION,
    "parley/broker/replication/truncation_decisions.py": _REPLICATION,
    "parley/broker/replication/followed_partition.py": _REPLICATION,
    "parley/broker/coordinators": ["tests/broker/coordinators"],
    "parley/broker/controller": [
        "tests/broker/controller",
        "tests/broker/api",
        "tests/broker/security/test_delegation_tokens.py",
    ],
    "parley/consensus/recipes": [
        "tests/consensus/test_recipes.py",
        "tests/consensus/test_settled_write.py",
        "tests/consensus/conformance/test_memory_conforms.py",
    ],
}
"""What is mutated, a file or all files of a folder, and the tests that must notice."""


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
    drawn = {name: sample(name, asked.sample, asked.seed) for name in chosen}
    target_of = {id(mutant): name for name, mutants in drawn.items() for mutant in mutants}
    counted: dict[str, Counter[bool]] = {name: Counter() for name in chosen}
    survivors = []
    for tests in sorted(set(map(tuple, chosen.values()))):
        mutants = [mutant for name in chosen if tuple(chosen[name]) == tests for mutant in drawn[name]]
        for mutant, is_killed in try_all(tests, mutants, asked.jobs):
            counted[target_of[id(mutant)]][is_killed] += 1
            verdict = "killed  " if is_killed else "SURVIVED"
            print(f"{verdict} {mutant.where} {mutant.operator}", file=sys.stderr, flush=True)
            if not is_killed:
                survivors.append(mutant)
    print(table(counted, survivors))
    killed = sum(counts[True] for counts in counted.values())
    return 0 if killed >= asked.at_least * len(target_of) else 1


if __name__ == "__main__":
    sys.exit(main())
