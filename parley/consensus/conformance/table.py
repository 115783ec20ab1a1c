"""The results of the kit as a table: a row for each property, a column for each store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
"""The content of a file written by ``python -m parley.consensus.conformance ... --json FILE``."""


def table(reports: Mapping[str, Report]) -> str:
    """Render reports, by the names of their stores, as a Markdown table."""
    by_store = {store: {each["name"]: each for each in report["checks"]} for store, report in reports.items()}
    names = list(dict.fromkeys(name for checks in by_store.values() for name in checks))
    lines = [_row(["property", *by_store]), _row(["---"] * (len(by_store) + 1))]
    for name in names:
        promise = next(checks[name]["promise"] for checks in by_store.values() if name in checks)
        cells = [_cell(checks.get(name)) for checks in by_store.values()]
        lines.append(_row([f"`{name}` {promise}", *cells]))
    return "\n".join(lines) + "\n"


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not run"
    return "<br>".join(["holds" if found["passed"] else "**does not hold**", *map(_measure, found["measures"])])


def _measure(measure: Mapping[str, Any]) -> str:
    unit = f" {measure['unit']}" if measure["unit"] else ""
    bound = f" of {_number(measure['bound'])}" if measure["bound"] is not None else ""
    return f"{measure['what']}: {_number(measure['value'])}{bound}{unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
