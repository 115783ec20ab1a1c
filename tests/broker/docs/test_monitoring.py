"""The metrics and pages that alerts and dashboards refer to exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from parley.broker.docs.monitoring.alerts import ALERTS, DOCS
from parley.broker.docs.monitoring.dashboards import DASHBOARDS, Dashboard, dashboard_file
from parley.broker.docs.monitoring.page import KAFKA_0_9, metrics_in
from parley.broker.metrics.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[3]
OTHERS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
"""What Prometheus and its client library export."""
IN_KAFKA_0_9 = """
    MessagesInPerSec BytesInPerSec RequestsPerSec BytesOutPerSec LogFlushRateAndTimeMs UnderReplicatedPartitions
    ActiveControllerCount LeaderElectionRateAndTimeMs UncleanLeaderElectionsPerSec PartitionCount LeaderCount
    IsrShrinksPerSec IsrExpandsPerSec MaxLag ConsumerLag PurgatorySize TotalTimeMs QueueTimeMs LocalTimeMs RemoteTimeMs
    ResponseSendTimeMs NetworkProcessorAvgIdlePercent RequestHandlerAvgIdlePercent byte-rate throttle-time
"""
"""The names in the table of brokers' metrics on Kafka 0.9.0.1's page (docs/ops.html, "Monitoring")."""


def exported() -> set[str]:
    names = set(OTHERS)
    for instruments in CATALOGUE:
        for instrument in instruments.INSTRUMENTS.values():
            if instrument.kind == "histogram":
                names |= {f"{instrument.name}_{suffix}" for suffix in ("bucket", "count", "sum")}
            else:
                names.add(instrument.exported_name)
    return names


def test_every_metric_is_exported() -> None:
    queries = [alert.expr for alert in ALERTS]
    queries += [query.expr for each in DASHBOARDS for panel in each.panels for query in panel.queries]
    queries += [query for _, _, query in KAFKA_0_9]
    assert all(metrics_in(query) for query in queries)
    assert {name for query in queries for name in metrics_in(query)} - exported() == set()


def test_every_row_of_kafkas_table_is_there() -> None:
    rows = {re.split(r"name=|: ", mbean)[1].partition(",")[0] for _, mbean, _ in KAFKA_0_9}
    assert rows == set(IN_KAFKA_0_9.split())


def test_every_alert_has_a_section_that_says_more() -> None:
    for alert in ALERTS:
        page, _, anchor = alert.runbook.partition("#")
        text = (ROOT / DOCS / page).read_text()
        headings = {re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-")
                    for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}  # fmt: skip
        assert not anchor or anchor in headings, alert.runbook


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_a_dashboard_asks_for_its_source_and_loads_nothing_else(dashboard: Dashboard) -> None:
    text = dashboard_file(dashboard)
    made = json.loads(text)
    assert made["templating"]["list"][0]["type"] == "datasource"
    assert "http" not in text
    sources = {json.dumps(target["datasource"]) for panel in made["panels"] for target in panel["targets"]}
    assert sources == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}
    variables = {name for name, _ in dashboard.variables} | {"__rate_interval"}
    queries = " ".join(target["expr"] for panel in made["panels"] for target in panel["targets"])
    assert set(re.findall(r"\$(\w+)", queries)) <= variables
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in made["panels"]]
    assert len(set(places)) == len(places)
