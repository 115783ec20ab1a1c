"""Drawings as SVG: boxes, arrows and texts whose colors follow the theme of the page, dark or light.

A browser applies the theme of the page to its pictures (``color-scheme``), so one file serves both themes. Lengths are
in pixels of the drawing; it is scaled to the width of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, Literal

Tone = Literal["plain", "blue", "green", "orange", "red", "faint"]

_STYLE: Final = """\
text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328; }
.small { font-size: 11px; } .strong { font-weight: 600; }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
.faded { fill: #59636e; }
.shape { stroke-width: 1.3; fill: #f6f8fa; stroke: #818b98; }
.blue { fill: #ddf4ff; stroke: #0969da; } .green { fill: #dafbe1; stroke: #1a7f37; }
.orange { fill: #fff1e5; stroke: #bc4c00; } .red { fill: #ffebe9; stroke: #cf222e; }
.faint { fill: none; stroke: #818b98; stroke-dasharray: 4 3; }
.line { stroke: #59636e; stroke-width: 1.5; fill: none; } .dashed { stroke-dasharray: 5 4; }
.head { fill: #59636e; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .faded { fill: #9198a1; }
.shape { fill: #21262d; stroke: #7d8590; }
.blue { fill: #0c2d6b; stroke: #58a6ff; } .green { fill: #033a16; stroke: #3fb950; }
.orange { fill: #5a1e02; stroke: #f0883e; } .red { fill: #67060c; stroke: #ff7b72; }
.faint { fill: none; stroke: #7d8590; }
.line { stroke: #9198a1; } .head { fill: #9198a1; }
}
"""
_LINE_HEIGHT: Final = 17
CELL: Final = 34
"""The width and height of a row's cell."""


class Drawing:
    """A drawing of a given size, with a title for screen readers."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img">\n<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n'
            '<marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path class="head" d="M0 0 8 4 0 8z"/></marker>'
        )
        self._parts = list[str]()

    def box(
        self, x: float, y: float, width: float, height: float, text: str = "", *, tone: Tone = "plain", style: str = ""
    ) -> None:
        """Add a box with text in its middle. A line break begins a new line."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self._parts.append(f'<rect class="shape {tone}" {place} rx="4"/>')
        lines = text.split("\n") if text else []
        first = y + height / 2 + 4.5 - (len(lines) - 1) * _LINE_HEIGHT / 2
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + number * _LINE_HEIGHT, line, style=style, anchor="middle")

    def frame(self, x: float, y: float, width: float, height: float, title: str, *, tone: Tone = "plain") -> None:
        """Add a box around other boxes, with its title at the top."""
        self.box(x, y, width, height, tone=tone)
        self.text(x + 10, y + 19, title, style="strong")

    def row(
        self, x: float, y: float, cells: Sequence[str], *, tone: Tone, later: Tone = "plain", start: int | None = None
    ) -> None:
        """Add a row of cells: the records of a log. Those from index ``start`` on have the tone ``later``."""
        for number, cell in enumerate(cells):
            own = later if start is not None and number >= start else tone
            self.box(x + number * CELL, y, CELL, CELL, cell, tone=own, style="mono small")

    def text(self, x: float, y: float, text: str, *, style: str = "", anchor: str = "start") -> None:
        """Add a line of text with its baseline at ``y``."""
        classes = f' class="{style}"' if style else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{classes}>{escape(text)}</text>')

    def caption(self, x: float, y: float, *lines: str) -> None:
        """Add the caption, which explains the drawing below it."""
        for number, line in enumerate(lines):
            self.text(x, y + number * _LINE_HEIGHT, line, style="small faded")

    def arrow(self, *points: tuple[float, float], dashed: bool = False, head: bool = True) -> None:
        """Add a line through the points, with an arrowhead at its end."""
        path = " ".join(f"{'L' if number else 'M'}{x:g} {y:g}" for number, (x, y) in enumerate(points))
        end = ' marker-end="url(#to)"' if head else ""
        self._parts.append(f'<path class="line{" dashed" if dashed else ""}" d="{path}"{end}/>')

    def svg(self) -> str:
        """Return the content of the SVG file."""
        return "\n".join([self._head, *self._parts, "</svg>", ""])
