"""The figures of a measurement, and how they are printed: medians, ratios of Parley to the other brokers, the spread.

A program prints them as text. For the pictures of ``make bench`` it also writes them, as JSON, to the file that
``PARLEY_BENCH_FIGURES`` names.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from dataclasses import dataclass, field

OURS = "Parley"
"""The name that all versions and clusters of Parley have in tables."""
FIGURES_FILE = "PARLEY_BENCH_FIGURES"

Figures = dict[tuple[str, str], list[float]]
"""The measured values, by label and name of the broker."""


@dataclass(slots=True)
class Found:
    """The figures of all turns, and the brokers that could not be measured."""

    figures: Figures = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, str] = field(default_factory=dict)
    """The reason that a broker could not be measured, by its name."""


def report(found: Found, prefix: str = "") -> None:
    """Print the medians, the ratios, and each value whose label begins with ``prefix``. If ``PARLEY_BENCH_FIGURES``
    names a file, also write the medians to it as JSON."""
    print(table(found.figures))
    for name, reason in found.failures.items():
        print(f"\n{name} failed: {reason}")
    print(f"\n{spread(found.figures, prefix)}", flush=True)
    if file := os.environ.get(FIGURES_FILE):
        with open(file, "w") as output:
            json.dump(medians(found.figures), output)


def medians(figures: Figures) -> dict[str, dict[str, float]]:
    """Return the median of each figure, by label and name of the broker."""
    rows: dict[str, dict[str, float]] = {}
    for (label, name), values in figures.items():
        if values:  # a broker may have failed while the value was calculated
            rows.setdefault(label, {})[name] = statistics.median(values)
    return rows


def table(figures: Figures) -> str:
    """Format the medians as text. The medians of other brokers include the ratio Parley / broker."""
    rows = medians(figures)
    others = list(dict.fromkeys(name for by_name in rows.values() for name in by_name if name != OURS))
    width = max([48, *map(len, rows)])
    lines = [f"{'':<{width}} {OURS:>12}" + "".join(f" {name:>18} {'ratio':>7}" for name in others)]
    for label, by_name in rows.items():
        ours = by_name.get(OURS)
        line = f"{label:<{width}} {_number(ours):>12}"
        for name in others:
            theirs = by_name.get(name)
            ratio = f"{ours / theirs:.2f}" if ours is not None and theirs else ""
            line += f" {_number(theirs):>18} {ratio:>7}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def spread(figures: Figures, prefix: str = "") -> str:
    """Format all measured values whose label begins with ``prefix``, because a median of few values hides the
    spread."""
    lines = ["one by one"]
    for (label, name), values in figures.items():
        if values and label.startswith(prefix):
            lines.append(f"  {label}: {name}: {', '.join(map(_number, values))}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
