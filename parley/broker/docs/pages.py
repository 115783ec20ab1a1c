"""The pages of the documentation that are made from code."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parley.broker.docs.configuration import configuration_page
from parley.broker.docs.metrics import metrics_page
from parley.broker.docs.what_works import what_works_page

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/configuration.md": configuration_page,
    "docs/metrics.md": metrics_page,
    "docs/what-works.md": what_works_page,
}
"""What makes each page, by its path below the repository's root."""
