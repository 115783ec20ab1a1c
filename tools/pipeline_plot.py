"""The picture of ``make pipeline``: throughput, and how far the job is behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

INPUT, COUNTED, BEHIND = "#7a8794", "#1f6feb", "#b3261e"


class Sample(NamedTuple):
    """At a moment (s): how many records were given to the pipeline, and how many it has counted."""

    at: float
    given: int
    counted: int


def rates(samples: Sequence[Sample], window_s: float = 3.0) -> list[tuple[float, float, float]]:
    """Moment, and records per second given and counted over the time before it."""
    found = []
    for index, one in enumerate(samples):
        before = next(each for each in samples[: index + 1] if each.at >= one.at - window_s)
        passed = one.at - before.at
        if passed > 0:
            found.append((one.at, (one.given - before.given) / passed, (one.counted - before.counted) / passed))
    return found


def plot(samples: Sequence[Sample], marks: Sequence[tuple[float, str]], total: int, path: Path) -> None:
    """Draw a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True)
    moving = rates(samples)
    top.plot([one[0] for one in moving], [one[1] for one in moving], color=INPUT, label="into the file")
    top.plot([one[0] for one in moving], [one[2] for one in moving], color=COUNTED, label="counted by Spark")
    top.set_ylabel("records per second")
    top.set_title(f"make pipeline: {total} records, the Spark job killed in the middle")
    times = [one.at for one in samples]
    bottom.fill_between(times, [one.given - one.counted for one in samples], color=BEHIND, alpha=0.3, step="post")
    bottom.set_ylabel("lag (records)")
    bottom.set_xlabel("seconds")
    bottom.set_ylim(bottom=0)
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
        for line, (at, text) in enumerate(marks, start=1):
            axes.axvline(at, color="black", linestyle="--", linewidth=1)
            axes.annotate(
                text,
                (at, 1),
                xycoords=("data", "axes fraction"),
                xytext=(-4, -14 * line),
                textcoords="offset points",
                horizontalalignment="right",
            )
    top.legend(loc="upper left")
    figure.savefig(path, dpi=120)
