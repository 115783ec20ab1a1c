"""Pictures of the figures in ``docs/performance.md``: how many times better or worse Parley is than other brokers."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

from bench.figures import OURS

Medians = dict[str, dict[str, float]]
"""The median of each figure, by label and name of the broker."""

_MORE_IS_BETTER = re.compile(r"(records|requests|transactions|rows|MB)/s|per (broker )?CPU s\b|resumed, %")
_ROW_INCHES, _WIDTH_INCHES = 0.22, 9.0
_COLORS = ("#3366cc", "#dd7733", "#449955", "#995599")
_FACTOR_MAX = 100.0


def advantage(label: str, ours: float, theirs: float) -> float | None:
    """Return how many times better Parley is, below 1 if it is worse, limited to 1/100 and 100. Returns None if one of
    the values is not positive."""
    if ours <= 0 or theirs <= 0:
        return None
    factor = ours / theirs if _MORE_IS_BETTER.search(label) else theirs / ours
    return min(max(factor, 1 / _FACTOR_MAX), _FACTOR_MAX)


def rows_of(families: Mapping[str, Medians]) -> list[tuple[str, dict[str, float]]]:
    """Return the label of each row, and Parley's advantage by name of the other broker, from top to bottom.

    A row without values is the title of a family.
    """
    rows: list[tuple[str, dict[str, float]]] = []
    for title, medians in families.items():
        measured = []
        for label, values in medians.items():
            ours = values.get(OURS, 0.0)
            factors = {name: advantage(label, ours, theirs) for name, theirs in values.items() if name != OURS}
            if known := {name: factor for name, factor in factors.items() if factor is not None}:
                measured.append((label, known))
        if measured:
            rows += [(title, {}), *measured]
    return rows


def picture(group: str, families: Mapping[str, Medians]) -> str:
    """Return an SVG picture with a row for each figure, and a dot for each other broker. Needs the extra ``plot``."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "parley", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot, ticker

    rows = rows_of(families)
    figure, axes = pyplot.subplots(figsize=(_WIDTH_INCHES, 1.2 + _ROW_INCHES * len(rows)), layout="constrained")
    for color, name in zip(_COLORS, dict.fromkeys(name for _, known in rows for name in known), strict=False):
        points = [(known[name], place) for place, (_, known) in enumerate(rows) if name in known]
        axes.scatter(*zip(*points, strict=True), color=color, label=name, s=18, zorder=3)
    axes.axvline(1.0, color="#444444", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    for tick, (_, known) in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_fontweight("normal" if known else "bold")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", which="both", color="#e4e4e4")
    axes.set_axisbelow(True)
    axes.set_title(f"{group}: on the right of the line Parley is better, by this factor")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.02 + 0.3 / (1.2 + _ROW_INCHES * len(rows))), ncols=4)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return "\n".join(line.rstrip() for line in text.getvalue().split("\n"))
