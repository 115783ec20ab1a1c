"""An animated terminal: lines appear at the times at which the program printed them, and the screen scrolls.

The animation is CSS within one SVG, so it also plays, repeatedly, if a page shows the file as an image. Readers whose
system is set to reduced motion see only its end.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Final

COLUMNS: Final = 112
ROWS: Final = 30
PAUSE_MAX_S: Final = 1.2
"""The maximum pause, in seconds. Longer pauses of the program are shortened to it."""
PER_LINE_S: Final = 0.05
END_S: Final = 6.0
"""How many seconds the end is shown before the animation starts again."""
_CHARACTER: Final = 8.4
_LINE: Final = 19
_MARGIN: Final = 16
_TOP: Final = 46


@dataclass(frozen=True)
class Line:
    """A printed line, and its time in seconds after the start of the program."""

    at: float
    text: str


@dataclass(frozen=True)
class _Shown:
    """A row of the screen, and the time at which it appears in the animation."""

    at: float
    text: str
    style: str


def moving_picture(title: str, lines: Sequence[Line]) -> str:
    """Return the SVG that shows the lines one after the other."""
    rows = list(_rows(lines))
    end = rows[-1].at + END_S
    steps = [(at, list(group)) for at, group in groupby(rows, key=lambda row: row.at)]
    width = round(COLUMNS * _CHARACTER + 2 * _MARGIN)
    height = _TOP + ROWS * _LINE + _MARGIN
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts, number = list[str](), 0
    for step, (_, group) in enumerate(steps):
        parts.append(f'<g class="s s{step}">')
        for row in group:
            number += 1
            if row.text:
                parts.append(_text(number, row))
        parts.append("</g>")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_style(steps, end)}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117" stroke="#30363d"/>',
            *(
                f'<circle cx="{20 + 20 * n}" cy="18" r="6" fill="{c}"/>'
                for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
            ),
            f'<text x="{width / 2:g}" y="23" text-anchor="middle" class="title">{escape(title)}</text>',
            f'<clipPath id="screen"><rect x="0" y="34" width="{width}" height="{height - 42}"/></clipPath>',
            '<g clip-path="url(#screen)"><g class="roll">',
            *parts,
            "</g></g>",
            "</svg>",
            "",
        ]
    )


def _rows(lines: Sequence[Line]) -> Iterator[_Shown]:
    """Wrap the lines as a terminal does, and shorten the pauses between them."""
    now, before = 0.0, 0.0
    for line in lines:
        now += PER_LINE_S + min(line.at - before, PAUSE_MAX_S)
        before = line.at
        command = line.text.startswith("$ ")
        text = line.text.expandtabs(4)
        for row in textwrap.wrap(text, COLUMNS, break_on_hyphens=False) or [""]:
            yield _Shown(
                round(now, 2), row.rstrip(), "kill" if line.text.startswith("$ kill") else "command" if command else ""
            )


def _text(number: int, row: _Shown) -> str:
    style = f' class="{row.style}"' if row.style else ""
    length = len(row.text) * _CHARACTER
    place = f'x="{_MARGIN}" y="{_TOP + number * _LINE - 5}" textLength="{length:.1f}"'
    return f'<text xml:space="preserve" {place}{style}>{escape(row.text)}</text>'


def _style(steps: Sequence[tuple[float, Sequence[_Shown]]], end: float) -> str:
    """Return the CSS: one animation for each step, and one that scrolls the screen when it is full."""
    lines = [
        'text { font: 14px ui-monospace, "DejaVu Sans Mono", monospace; fill: #c9d1d9; }',
        ".title { font-weight: 600; fill: #9198a1; } .command { fill: #7ee787; font-weight: 600; }",
        ".kill { fill: #ff7b72; font-weight: 600; }",
        f".s, .roll {{ animation: {end:.2f}s step-end infinite; }}",
    ]
    shown, rolled, rolls = 0, 0, ["0% { transform: none; }"]
    for step, (at, group) in enumerate(steps):
        share = f"{100 * at / end:.2f}%"
        lines.append(f".s{step} {{ animation-name: s{step}; }}")
        lines.append(f"@keyframes s{step} {{ 0% {{ opacity: 0; }} {share}, 100% {{ opacity: 1; }} }}")
        shown += len(group)
        if shown - ROWS > rolled:
            rolled = shown - ROWS
            rolls.append(f"{share} {{ transform: translateY({-rolled * _LINE}px); }}")
    last = f"translateY({-rolled * _LINE}px)"
    lines.append(f".roll {{ animation-name: roll; transform: {last}; }}")
    lines.append(f"@keyframes roll {{ {' '.join(rolls)} 100% {{ transform: {last}; }} }}")
    lines.append("@media (prefers-reduced-motion: reduce) { .s, .roll { animation: none; } }")
    return "\n".join([*lines, ""])
