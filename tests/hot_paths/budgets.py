"""Compares the work of the hot paths with their budgets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

BUDGETS = Path(__file__).parent / "budgets.json"
"""The work that each path may take."""
PYTHON = (3, 11)
"""The only version for which there are budgets. Later versions report only some of the instructions to a trace
function."""
GROWTH_MAX = 0.03
"""The fraction by which a path may exceed its budget: more than any difference between two runs."""
SLACK_MAX = 0.1
"""The fraction by which a path may stay below its budget. Beyond it, the budget would hide the next waste."""
RENEW = "python -m tests.hot_paths --write"


def budgets() -> dict[str, int]:
    """Read the file of budgets."""
    found: dict[str, int] = json.loads(BUDGETS.read_text())
    return found


def deviations(counted: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Return a sentence for each path whose work does not fit its budget."""
    found = [f"{path}: it has no budget" for path in counted if path not in allowed]
    found += [f"{path}: it has a budget, but is not measured" for path in allowed if path not in counted]
    for path in counted.keys() & allowed.keys():
        growth = counted[path] / allowed[path] - 1
        numbers = f"{growth:+.1%}, from {allowed[path]:,} to {counted[path]:,} instructions"
        if growth > GROWTH_MAX:
            found.append(f"{path}: {numbers}. A request on this path has become more expensive")
        elif growth < -SLACK_MAX:
            found.append(f"{path}: {numbers}. It has become cheaper: lower the budget, so that it stays so")
    return sorted(found)
