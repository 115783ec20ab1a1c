"""The documentation pages, and files for monitoring, that are generated from code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from parley.broker.docs.authorization import authorization_page
from parley.broker.docs.configuration import configuration_page
from parley.broker.docs.log_lines.page import log_lines_page
from parley.broker.docs.metrics import metrics_page
from parley.broker.docs.monitoring.alerts import rules_file
from parley.broker.docs.monitoring.dashboards import DASHBOARDS, dashboard_file
from parley.broker.docs.monitoring.page import monitoring_page
from parley.broker.docs.what_works import what_works_page

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/authorization.md": authorization_page,
    "docs/configuration.md": configuration_page,
    "docs/log-lines.md": log_lines_page,
    "docs/metrics.md": metrics_page,
    "docs/monitoring.md": monitoring_page,
    "docs/what-works.md": what_works_page,
    "deploy/monitoring/alerts.yml": rules_file,
    **{f"deploy/monitoring/dashboards/{each.uid}.json": partial(dashboard_file, each) for each in DASHBOARDS},
}
"""The generator of each page, by its path relative to the root of the repository."""
