"""Turns: each kind of broker or cluster is started, measured and stopped, one after another, in rounds (A B A B ...).

Other load on the machine then affects all kinds. A kind that fails is left out of the later rounds, and the report says
why; the other kinds continue.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from bench.figures import Figures, Found


class Subject(Protocol):
    """A broker or a cluster to measure."""

    name: str

    def start(self) -> float:
        """Start it. Returns the seconds until it served requests."""

    def stop(self) -> None:
        """Stop it, and remove its data."""


S = TypeVar("S", bound=Subject)


def turns_parser(module: str, description: str | None, *, rounds: int, of: str = "broker") -> ArgumentParser:
    """Return the parser of a program that measures in turns. It has the options ``--rounds`` and ``--alone``."""
    parser = ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"number of turns of each {of}")
    parser.add_argument("--alone", action="store_true", help="measure Parley only")
    return parser


def in_turns(
    kinds: Sequence[Callable[[Path], S]], rounds: int, measure: Callable[[S, Figures], None], *, starts: bool = True
) -> Found:
    """Measure each kind ``rounds`` times, each time with a new folder. With ``starts=False``, ``measure`` starts it. An
    error of a kind is recorded in the result, and ends the turns of this kind."""
    found = Found()
    for turn in range(rounds):
        for kind in kinds:
            with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
                subject = kind(Path(folder) / "broker")
                if subject.name in found.failures:
                    continue
                print(f"round {turn + 1} of {rounds}: {subject.name}", file=sys.stderr, flush=True)
                try:
                    _measure_one(subject, found.figures, measure, starts)
                except (Exception, SystemExit) as error:
                    reason = f"{type(error).__name__}: {error}"
                    found.failures[subject.name] = f"round {turn + 1}: {reason}"
                    print(f"{subject.name} failed: {reason}", file=sys.stderr, flush=True)
    return found


def _measure_one(subject: S, figures: Figures, measure: Callable[[S, Figures], None], starts: bool) -> None:
    try:
        if starts:
            subject.start()
        measure(subject, figures)
    finally:
        subject.stop()
