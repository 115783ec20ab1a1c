"""The picture in docs/example-orders.md: revenue by window and country, as an SVG with stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

_COLORS: Final = ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#6cc5b0", "#a463f2")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 760, 300, 60, 40, 40


def picture(rows: Sequence[tuple[datetime, str, Decimal, int]]) -> str:
    """Return an SVG with a stacked bar for each window. A row consists of window, country, revenue and number of
    bookings; the bookings are not drawn. Negative revenue is below the axis."""
    windows = sorted({window for window, *_ in rows})
    countries = sorted({country for _, country, *_ in rows})
    revenue = {(window, country): float(total) for window, country, total, _ in rows}
    stacks = [[revenue.get((window, country), 0.0) for country in countries] for window in windows]
    top = max((sum(max(0.0, each) for each in stack) for stack in stacks), default=0.0) or 1.0
    bottom = min((sum(min(0.0, each) for each in stack) for stack in stacks), default=0.0)
    scale = (_HEIGHT - _TOP - _BOTTOM) / (top - bottom)
    zero = _TOP + top * scale
    step = (_WIDTH - _LEFT - 20) / max(1, len(windows))
    parts = []
    for number, stack in enumerate(stacks):
        above = below = zero
        for country, each in enumerate(stack):
            height = abs(each) * scale
            y = above - height if each >= 0 else below
            above, below = (above - height, below) if each >= 0 else (above, below + height)
            place = f'x="{_LEFT + number * step:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}"'
            parts.append(f'<rect {place} fill="{_COLORS[country % len(_COLORS)]}"/>')
    for number, window in enumerate(windows):
        if number % max(1, len(windows) // 8) == 0:
            parts.append(_text(_LEFT + number * step, _HEIGHT - 14, f"{window:%H:%M}"))
    for number, name in enumerate(countries):
        parts.append(f'<rect x="{_LEFT + 60 * number}" y="12" width="12" height="12" fill="{_COLORS[number]}"/>')
        parts.append(_text(_LEFT + 60 * number + 17, 22, name))
    parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="#888"/>')
    parts += [_text(8, _TOP + 10, f"{top:,.0f}"), _text(8, zero, "0")]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">'
    title = "<title>Revenue of ten-minute windows, by country</title>"
    body = "\n".join([title, '<rect width="100%" height="100%" fill="#fff"/>', *parts])
    return f"{head}\n{body}\n</svg>\n"


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" fill="#444">{text}</text>'
