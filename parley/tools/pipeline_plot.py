"""The chart of ``make pipeline``: the throughput and the lag of the Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_BEFORE_S = 2.0
"""How many seconds before the first count the chart begins."""
INPUT, COUNTED, BEHIND = "#7a8794", "#1f6feb", "#b3261e"


class Sample(NamedTuple):
    """The progress at a moment: the time in seconds, and the numbers of records written to the input and counted so
    far."""

    at: float
    given: int
    counted: int


def rates(samples: Sequence[Sample], window_s: float = 3.0) -> list[tuple[float, float, float]]:
    """Return for each sample its time, and the records per second written and counted during the ``window_s`` before
    it. Omits the first sample."""
    found = []
    for index, one in enumerate(samples):
        before = next(each for each in samples[: index + 1] if each.at >= one.at - window_s)
        passed = one.at - before.at
        if passed > 0:
            found.append((one.at, (one.given - before.given) / passed, (one.counted - before.counted) / passed))
    return found


def shown_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples to draw, with times relative to the first count. Omits the time in which Spark starts, except
    for ``_BEFORE_S``."""
    first = next((one.at for one in samples if one.counted), samples[0].at)
    return [one._replace(at=one.at - first) for one in samples if one.at >= first - _BEFORE_S]


def plot(samples: Sequence[Sample], killed: float, again: float, verdict: str, path: Path) -> None:
    """Draw the chart as a PNG, with the subtitle ``verdict``. The job was stopped from ``killed`` to ``again``, both in
    seconds like the samples' times."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = shown_samples(samples)
    earlier = samples[-1].at - shown[-1].at
    figure = Figure(figsize=(10, 6.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True)
    figure.suptitle("make pipeline: a Spark job killed and started again", fontsize=15, fontweight="bold")
    top.set_title(verdict, fontsize=10.5, loc="left")
    moving = rates(shown, max(3.0, (shown[-1].at - shown[0].at) / 15))
    times = [one[0] for one in moving]
    top.fill_between(times, [one[1] for one in moving], color=INPUT, alpha=0.25, linewidth=0)
    top.plot(times, [one[1] for one in moving], color=INPUT, label="written to the file")
    top.plot(times, [one[2] for one in moving], color=COUNTED, linewidth=2, label="counted by Spark")
    top.set_ylabel("throughput (records/s)")
    times = [one.at for one in shown]
    behind = [one.given - one.counted for one in shown]
    bottom.fill_between(times, behind, color=BEHIND, alpha=0.2, step="post", linewidth=0)
    bottom.step(times, behind, where="post", color=BEHIND, label="written, not counted yet")
    bottom.set_ylabel("lag (records)")
    bottom.set_xlabel("seconds since the first count")
    for axes in (top, bottom):
        axes.axvspan(killed - earlier, again - earlier, color="black", alpha=0.06, linewidth=0)
        axes.axvline(killed - earlier, color="black", linestyle="--", linewidth=1)
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01, y=0.12)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, borderpad=0, fontsize=9)
    words = f"kill -9, and it starts again\non its checkpoint: {again - killed:.0f} s"
    place = ((killed + again) / 2 - earlier, 0.97)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 2.5}
    bottom.annotate(words, place, xycoords=("data", "axes fraction"), ha="center", va="top", fontsize=9, bbox=box)
    figure.savefig(path, dpi=140)
