"""The generated pages are up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig, TopicConfig
from parley.broker.config.group_config import GroupConfig
from parley.broker.config.retired import RETIRED
from parley.broker.docs.pages import PAGES
from parley.broker.docs.what_works import UNSERVED
from parley.broker.metrics.catalogue import CATALOGUE
from parley.protocol.messages import APIS

ROOT = Path(__file__).resolve().parents[3]


_LONGEST = "docs/log-lines.md"
"""Its rows come from every log call in the code."""
_SLOW = pytest.mark.slow


@pytest.mark.parametrize("path", [pytest.param(each, marks=_SLOW) if each == _LONGEST else each for each in PAGES])
def test_the_page_is_current(path: str) -> None:
    assert (ROOT / path).read_text() == PAGES[path](), "run `make docs`"


def test_every_key_is_on_the_page() -> None:
    page = PAGES["docs/configuration.md"]()
    headings = [line.removeprefix("### ").strip("`") for line in page.splitlines() if line.startswith("### ")]
    assert sorted(headings) == sorted([*BrokerConfig.KEYS, *TopicConfig.KEYS, *GroupConfig.KEYS])
    assert all(f"`{name.removesuffix('.')}" in page for name in RETIRED)


def test_every_metric_is_on_the_page() -> None:
    page = PAGES["docs/metrics.md"]()
    for instruments in CATALOGUE:
        for instrument in instruments.INSTRUMENTS.values():
            assert page.count(f"| `{instrument.exported_name}` |") == 1


def test_every_api_is_served_or_says_why_not() -> None:
    page = PAGES["docs/what-works.md"]()
    for api in APIS.values():
        (row,) = [line for line in page.splitlines() if f"| {api.name} |" in line]
        assert (api.name in UNSERVED) == row.split("|")[3].isspace(), row
    assert UNSERVED.keys() <= {api.name for api in APIS.values()}
