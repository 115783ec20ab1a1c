"""Mutants: one change of one file each, made by cosmic-ray's operators, drawn by a seed."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]

PROVE_NOTHING = ("_BitOr_", "_Is_Eq", "_IsNot_NotEq", "_Eq_Is", "_NotEq_IsNot", "Variable", "RemoveDecorator")
"""Parts of the names of operators whose mutants are the same program (``int | None``), or no program."""

GUARDS = re.compile(r"(frozen|slots)=(True|False)")
"""Flags of dataclasses that guard against mistakes and change no result: their mutants do not count."""

EQUIVALENT = [
    (r"== NO_EPOCH\b", "_Eq_LtE", "no epoch is below NO_EPOCH"),
    (r"!= NO_EPOCH\b", "_NotEq_Gt", "no epoch is below NO_EPOCH"),
    (r"== NO_LEADER\b", "_Eq_LtE", "no broker id is below NO_LEADER"),
    (r"!= NO_LEADER\b", "_NotEq_Gt", "no broker id is below NO_LEADER"),
    (r"shift % max\(1, .* -> .*max\( ?2,", "Number", "with one or two brokers the shift changes nothing"),
    (r"self\.first_request = 0", "Number", "the fetcher sets it before the state is FETCHING, and reads it only then"),
    (r"state_since_ms: int = -1", "Number", "read only in groups that have entered a state or come from the log"),
    (r" -> .*transaction_version: int = +-?1\b", "Number", "the rules for markers change with version 2"),
    (r"most_common\(1\)\[0\]\[0\]", "Number", "only the first is taken"),
    (r"rebalance_timeout_ms .*default=0", "Number", "a rebalance without members ends at once"),
    (r" -> .*\bmin_epoch: int = +(1|-1)\b", "Number", "the first epoch is 1 anyway"),
    (r" -> .*\bmin_incarnation: int = +0\b", "Number", "the first incarnation is 1 anyway"),
    (r"if log_start_offset > log\.log_start_offset:", "_Gt_NotEq", "the start of a log never decreases"),
    (r"if log_start_offset > log\.log_start_offset:", "_Gt_GtE", "a start that is the same changes nothing"),
    (r" -> .*len\(self\.state\.replicas\) > +0", "Number", "the only replica's high watermark moves with each append"),
    (r"change\.key == key for", "_Eq_LtE", "no other key begins with a leader's key"),
    (r"change\.key == key for", "_Eq_GtE", "no other key begins with a leader's key"),
    (r"if fetch_offset != had:", "_NotEq_Gt", "the high watermark moves only if a follower has more than before"),
    (
        r"(^|[(, ])\*,.* -> .*(^|[(, ])/,",
        "_Mul_Div",
        "the star only forbids arguments by position: no call has them",
    ),
    (r" -> log_offset: int = - ?2", "Number", "before every record, as -1"),
    (r"for state in _S if state is not _S\.LEFT", "_IsNot_Lt", "LEFT is the last state"),
    (r"truncate_from_end\(0\) -> .*\( ?-1\)", "Number", "no offset is below 0"),
    (r"min_insync_replicas if unsettled else 1", "Number", "without unsettled partitions it is not used"),
    (r"(latest|known\.log_offset) < log_offset:", "_Lt_LtE", "no two batches of a log have the same last offset"),
    (r"list\(_group_prefix\(group\), limit=1000", "Number", "all pages are read, however many there are"),
    (r"def entries\(.* page: int = 1000\)", "Number", "all pages are read, however many there are"),
    (r"\.type is ResourceType\.TOPIC", "_Is_LtE", "no other resource with a configuration is below TOPIC"),
    (r"LOG_END = 2 -> ", "Number", "only the numbers of the two levels in the protocol count"),
    (r"if new is not None and revision is not None", "AndWithOr", "a put has a revision, a deletion has none"),
]
"""Mutants that are the same program and do not count: a pattern for "line before -> line after", a part of the
operator's name, the reason."""


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
    was, becomes = before[changed].strip(), after[changed].strip()
    change = f"{was} -> {becomes}"
    if any(re.search(line, change) and operator in name for line, operator, _ in EQUIVALENT):
        return None
    return Mutant(path, name, changed + 1, mutated, was, becomes)


def _is_program(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def sample(target: str, count: int, seed: int) -> list[Mutant]:
    """Return ``count`` mutants of a target. A seed gives the same mutants of the same files."""
    rng = Random(f"{seed} {target}")
    whole = ROOT / target
    files = sorted(whole.rglob("*.py")) if whole.is_dir() else [whole]
    places = [place for file in files for place in places_in(file.relative_to(ROOT), rng)]
    rng.shuffle(places)
    made = (mutant for place in places if (mutant := mutant_at(*place)) is not None)
    return list(itertools.islice(made, count))
