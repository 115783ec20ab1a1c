"""The files in ``deploy/monitoring`` as Prometheus' own ``promtool`` reads them: valid, and each alert fires and ends.

The tests make up time series for each fault: some time with it, and some time without it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from parley.broker.docs.monitoring.alerts import ALERTS

pytestmark = pytest.mark.slow

MONITORING = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
RULES = {"rule_files": [str(MONITORING / "alerts.yml")], "evaluation_interval": "5m"}
FAULT, CALM = 60, 120
"""Minutes with the fault, and after it. There is a sample each minute."""
LONG = 1500
"""Minutes of both for alerts about days."""
MOMENT = 'job="parley", cluster="main", instance="b1"'


class Series(NamedTuple):
    """A series: its value during the fault, its growth per sample then, and its value afterwards (None: stays)."""

    name: str
    labels: str
    value: float
    growth: float = 0
    after: float | None = 0

    def as_input(self, fault: int, calm: int) -> dict[str, str]:
        labels = ", ".join(filter(None, (MOMENT, self.labels)))
        end = self.value + self.growth * fault if self.after is None else self.after
        values = f"{self.value:g}{self.growth:+g}x{fault} {end:g}+0x{calm}"
        return {"series": f"{self.name}{{{labels}}}", "values": values}


def level(name: str, fault: float, after: float = 0, labels: str = "") -> Series:
    return Series(name, labels, fault, 0, after)


def counter(name: str, per_minute: float, labels: str = "") -> Series:
    return Series(name, labels, 0, per_minute, None)


CASES: dict[str, list[Series]] = {
    "ParleyBrokerDown": [level("up", 0, 1)],
    "ParleyEventLoopStalls": [level("parley_event_loop_delay_seconds", 0.4)],
    "ParleyShortage": [level("parley_short", 1, labels='resource="memory"')],
    "ParleyConnectionsNearLimit": [
        level("parley_connections", 50, labels='listener="A"'),
        level("parley_connections", 45, labels='listener="B"'),
        level("parley_connections_limit", 100, 100),
    ],
    "ParleyConnectionsRefused": [counter("parley_connections_refused_total", 6, 'listener="A"')],
    "ParleyProtocolErrors": [counter("parley_connections_closed_for_errors_total", 6, 'listener="A"')],
    "ParleyAuthenticationFailures": [counter("parley_failed_authentications_total", 120, 'listener="A"')],
    "ParleyCertificateExpires": [
        level("parley_certificate_expiry_timestamp_seconds", 86400, 365 * 86400, 'listener="A"'),
        level("parley_certificate_expiry_timestamp_seconds", 0, 0, 'listener="B"'),
    ],
    "ParleyThrottling": [
        counter("parley_client_quota_throttle_seconds_total", 30, 'quota="produce", user="u", client_id=""')
    ],
    "ParleyNoController": [level("parley_active_controller", 0, 1)],
    "ParleyTwoControllers": [level("parley_active_controller", 2, 1)],
    "ParleyOfflinePartitions": [level("parley_offline_partitions", 3)],
    "ParleyUnderMinIsr": [level("parley_under_min_isr_partitions", 3)],
    "ParleyUnderReplicated": [level("parley_under_replicated_partitions", 3)],
    "ParleyIsrFlapping": [counter("parley_isr_shrinks_total", 1)],
    "ParleyUncleanElection": [counter("parley_unclean_leader_elections_total", 1)],
    "ParleyHangingTransactions": [level("parley_late_transaction_partitions", 1)],
    "ParleyGroupLagGrowing": [Series("parley_group_lag_records", 'group="g", topic="t", partition="0"', 5000, 100, 0)],
    "ParleyStoreAway": [level("parley_store_responds", 0, 1, 'store="etcd"')],
    "ParleyStoreSlow": [
        counter("parley_store_call_duration_seconds_bucket", 0, 'operation="txn", le="1.048576"'),
        counter("parley_store_call_duration_seconds_bucket", 10, 'operation="txn", le="2.097152"'),
        counter("parley_store_call_duration_seconds_bucket", 10, 'operation="txn", le="+Inf"'),
    ],
    "ParleyStoreSessionLost": [counter("parley_store_session_expirations_total", 0.2)],
    "ParleyDiskNearlyFull": [
        level("parley_log_directory_free_bytes", 10, 50, 'directory="/d"'),
        level("parley_log_directory_total_bytes", 100, 100, 'directory="/d"'),
    ],
    "ParleyDiskFilling": [
        Series("parley_log_directory_free_bytes", 'directory="/d"', 1000, -10, None),
        level("parley_log_directory_total_bytes", 2000, 2000, 'directory="/d"'),
    ],
    "ParleyLogDirectoryOffline": [level("parley_log_directory_offline", 1, labels='directory="/d"')],
    "ParleyDamagedRecords": [level("parley_damaged_ranges_without_copy", 1)],
    "ParleyRecordsHealed": [counter("parley_damage_healed_ranges_total", 1)],
    "ParleyScrubOverdue": [level("parley_scrub_overdue_bytes", 1e9)],
    "ParleyUncleanablePartitions": [level("parley_uncleanable_partitions", 1, labels='directory="/d"')],
    "ParleyCleanerBusy": [level("parley_cleaner_since_last_look_seconds", 7200)],
}
SLOW = {"ParleyRecordsHealed", "ParleyScrubOverdue"}
"""Alerts about days."""


def promtool(*words: str) -> str:
    done = subprocess.run(["promtool", *words], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_files_are_valid() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


def test_each_alert_fires_during_its_fault_and_ends_after_it(tmp_path: Path) -> None:
    assert list(CASES) == [alert.name for alert in ALERTS]
    tests = [_test(name, case) for name, case in CASES.items()]
    path = tmp_path / "test.yml"
    path.write_text(json.dumps({**RULES, "tests": tests}))
    promtool("test", "rules", str(path))


def _test(name: str, case: list[Series]) -> dict[str, object]:
    fault, calm = (LONG, LONG) if name in SLOW else (FAULT, CALM)
    firing = f'count(ALERTS{{alertname="{name}", alertstate="firing"}})'
    return {
        "interval": "1m",
        "input_series": [series.as_input(fault, calm) for series in case],
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{fault}m", "exp_samples": [{"labels": "{}", "value": 1}]},
            {"expr": firing, "eval_time": f"{fault + calm}m", "exp_samples": []},
        ],
    }
