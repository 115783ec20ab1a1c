"""The table of measurements."""

from __future__ import annotations

from typing import Any

from parley.consensus.conformance.table import table


def _check(name: str, *, passed: bool = True, measures: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"name": name, "promise": f"{name} is so.", "passed": passed, "measures": measures}


def test_a_row_for_each_property_and_a_column_for_each_store() -> None:
    gone = {"what": "keys gone", "value": 2345.6, "unit": "ms", "bound": 4000.0}
    count = {"what": "a|b", "value": 0.512, "unit": "", "bound": None}
    found = table(
        {
            "one": {"checks": [_check("kv-x", measures=(gone, count)), _check("kv-y", passed=False)]},
            "two": {"checks": [_check("kv-x")]},
        }
    )
    assert found == (
        "| property | one | two |\n"
        "| --- | --- | --- |\n"
        "| `kv-x` kv-x is so. | holds<br>keys gone: 2,346 of 4,000 ms<br>a&#124;b: 0.51 | holds |\n"
        "| `kv-y` kv-y is so. | **does not hold** | not run |\n"
    )
